package runtimes

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"runtime"
	"slices"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// imageSpec describes an image. The zero value is an image that holds only the test program, which
// sleeps.
type imageSpec struct {
	App   string            // the program, from build.Get; it becomes /bin/app
	Files map[string]string // :: absolute path → content, in a separate layer
	User  string            // the uid of the program; empty means root
	Cmd   []string          // arguments of /bin/app that a container may replace; empty means sleep
}

// newImage assembles an OCI image in memory. Equal specs give equal digests.
func newImage(spec imageSpec) (v1.Image, error) {
	program, err := programLayer(spec.App)
	if err != nil {
		return nil, err
	}
	files := map[string]string{
		"/etc/passwd": "root:x:0:0:root:/:/bin/app\nuser:x:1000:1000:user:/:/bin/app\n",
		"/etc/group":  "root:x:0:\nuser:x:1000:\n",
	}
	maps.Copy(files, spec.Files)
	rest, err := layer(plain(files, 0o644))
	if err != nil {
		return nil, err
	}

	return assemble(v1.Config{
		User:       spec.User,
		Env:        []string{"PATH=/bin"},
		Entrypoint: []string{"/bin/app"},
		Cmd:        spec.Cmd,
		WorkingDir: "/",
	}, program, rest)
}

// shellEnv is the environment of an image that has a shell.
var shellEnv = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}

// assemble makes an OCI image from layers.
func assemble(config v1.Config, layers ...v1.Layer) (v1.Image, error) {
	image := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	image = mutate.ConfigMediaType(image, types.OCIConfigJSON)
	image, err := mutate.AppendLayers(image, layers...)
	if err != nil {
		return nil, fmt.Errorf("testbed: assembling an image: %w", err)
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("testbed: assembling an image: %w", err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config = "linux", runtime.GOARCH, config
	return mutate.ConfigFile(image, file)
}

// programLayers caches the layer of each program file, which all images share, because packing is slow.
var programLayers sync.Map // :: path → v1.Layer

func programLayer(file string) (v1.Layer, error) {
	if made, ok := programLayers.Load(file); ok {
		return made.(v1.Layer), nil
	}
	app, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("testbed: reading the test program (it comes from build.Get(ctx, w, build.App)): %w", err)
	}
	made, err := layer(plain(map[string]string{"/bin/app": string(app)}, 0o755))
	if err == nil {
		programLayers.Store(file, made)
	}
	return made, err
}

// A file is a file of a layer.
type file struct {
	Content string
	Mode    int64
	Link    string // target of a symbolic link; the other fields are then ignored
}

// plain returns files with one mode.
func plain(files map[string]string, mode int64) map[string]file {
	all := map[string]file{}
	for name, content := range files {
		all[name] = file{Content: content, Mode: mode}
	}
	return all
}

// layer makes a layer of files and of the folders above them. All users may write to /tmp.
func layer(files map[string]file) (v1.Layer, error) {
	dirs := map[string]int64{}
	for name := range files {
		for dir := path.Dir(name); dir != "/"; dir = path.Dir(dir) {
			dirs[dir] = 0o755
		}
	}
	if dirs["/tmp"] != 0 {
		dirs["/tmp"] = 0o1777
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, dir := range slices.Sorted(maps.Keys(dirs)) {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir[1:] + "/", Mode: dirs[dir]}); err != nil {
			return nil, fmt.Errorf("testbed: packing %s: %w", dir, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f := files[name]
		header := &tar.Header{Typeflag: tar.TypeReg, Name: name[1:], Mode: f.Mode, Size: int64(len(f.Content))}
		if f.Link != "" {
			header = &tar.Header{Typeflag: tar.TypeSymlink, Name: name[1:], Linkname: f.Link, Mode: 0o777}
		}
		err := w.WriteHeader(header)
		if err == nil {
			_, err = io.WriteString(w, f.Content)
		}
		if err != nil {
			return nil, fmt.Errorf("testbed: packing %s: %w", name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(buf.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching, tarball.WithCompressionLevel(gzip.BestSpeed))
}
