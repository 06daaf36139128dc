package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// image writes the image that the DaemonSet runs: an OCI layout in a tar file, without a base image. The folder -from has
// a folder linux-ARCH of programs for each architecture, and licences.txt.
func image(out string, flags map[string]string, archs []string) error {
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH, the time of the commit: %w", err)
	}
	at := time.Unix(seconds, 0).UTC()
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range archs {
		img, err := imageFor(arch, flags["root"], flags["from"], flags["version"], flags["commit"], at)
		if err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{
			Platform: &v1.Platform{OS: "linux", Architecture: arch},
		}})
	}
	// One entry for the index of all architectures, with the version as its tag.
	outer := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: index, Descriptor: v1.Descriptor{
		Annotations: map[string]string{"org.opencontainers.image.ref.name": flags["version"]},
	}})
	dir, err := os.MkdirTemp("", "oci-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if _, err := layout.Write(dir, outer); err != nil {
		return err
	}
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	if err := pack(f, dir, at); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

func imageFor(arch, root, from, version, commit string, at time.Time) (v1.Image, error) {
	programs := filepath.Join(from, "linux-"+arch)
	layer, err := layerOf(at, []file{
		{"usr/bin/criproxy", filepath.Join(programs, "criproxy"), 0o755},
		{"usr/bin/criproxy-on-node", filepath.Join(programs, "criproxy-on-node"), 0o755},
		{"usr/lib/systemd/system/criproxy.service", filepath.Join(root, "packaging/systemd/criproxy.service"), 0o644},
		{"etc/criproxy/config.yaml", filepath.Join(root, "packaging/config.yaml"), 0o644},
		{"usr/share/doc/criproxy/copyright", filepath.Join(root, "LICENSE"), 0o644},
		{"usr/share/doc/criproxy/licences.txt", filepath.Join(from, "licences.txt"), 0o644},
	})
	if err != nil {
		return nil, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if img, err = mutate.Append(img, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: at}, CreatedBy: "make release"}}); err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", arch, v1.Time{Time: at}
	config.Config = v1.Config{
		Cmd: []string{"/usr/bin/criproxy-on-node"},
		Env: []string{"PATH=/usr/bin"},
		Labels: map[string]string{
			"org.opencontainers.image.title":    "criproxy",
			"org.opencontainers.image.version":  version,
			"org.opencontainers.image.revision": commit,
			"org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.source":   source,
		},
	}
	return mutate.ConfigFile(img, config)
}

// A file of the image.
type file struct {
	name, from string
	mode       int64
}

// layerOf returns a layer with files, and their folders. It depends only on their contents.
func layerOf(at time.Time, files []file) (v1.Layer, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	made := map[string]bool{}
	var folders func(name string) error
	folders = func(name string) error {
		if name == "." || made[name] {
			return nil
		}
		made[name] = true
		if err := folders(filepath.Dir(name)); err != nil {
			return err
		}
		return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755, ModTime: at})
	}
	for _, f := range files {
		data, err := os.ReadFile(f.from)
		if err != nil {
			return nil, err
		}
		if err := folders(filepath.Dir(f.name)); err != nil {
			return nil, err
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(data)), ModTime: at}); err != nil {
			return nil, err
		}
		if _, err := w.Write(data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer))
}

// pack writes the files below dir to a tar file, in the order of their names.
func pack(out io.Writer, dir string, at time.Time) error {
	w := tar.NewWriter(out)
	if err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == "." {
			return err
		}
		if d.IsDir() {
			return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: path + "/", Mode: 0o755, ModTime: at})
		}
		data, err := os.ReadFile(filepath.Join(dir, path))
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path, Mode: 0o644, Size: int64(len(data)), ModTime: at}); err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	}); err != nil {
		return err
	}
	return w.Close()
}
