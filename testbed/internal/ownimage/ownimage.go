// Package ownimage builds criproxy's image as a release has it.
package ownimage

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
)

// Build makes the image of a version, with make image, and returns the one for this machine's architecture.
func Build(t *testing.T, version string) v1.Image {
	t.Helper()
	dist := t.TempDir()
	require.NoError(t, build.Packages(t.Context(), version, runtime.GOARCH, dist, "image"))
	return Load(t, filepath.Join(dist, "criproxy-"+version+"-oci.tar"))
}

// Load reads the image for this machine's architecture from an OCI layout in a tar file.
func Load(t *testing.T, file string) v1.Image {
	t.Helper()
	dir := t.TempDir()
	out, err := host.Command(t.Context(), "tar", "-xf", file, "-C", dir).CombinedOutput()
	require.NoError(t, err, "%s", out)
	outer, err := layout.ImageIndexFromPath(dir)
	require.NoError(t, err)
	manifest, err := outer.IndexManifest()
	require.NoError(t, err)
	require.Len(t, manifest.Manifests, 1, "one index of all architectures")
	index, err := outer.ImageIndex(manifest.Manifests[0].Digest)
	require.NoError(t, err)
	manifest, err = index.IndexManifest()
	require.NoError(t, err)
	for _, m := range manifest.Manifests {
		if m.Platform.Architecture == runtime.GOARCH {
			img, err := index.Image(m.Digest)
			require.NoError(t, err)
			return img
		}
	}
	require.Fail(t, "no image for "+runtime.GOARCH)
	return nil
}

// Unpack puts the files of an image into a folder, over those that are there.
func Unpack(t *testing.T, img v1.Image, dir string) {
	t.Helper()
	content := mutate.Extract(img)
	defer content.Close()
	for r := tar.NewReader(content); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err)
		path := filepath.Join(dir, h.Name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		if h.Typeflag == tar.TypeDir {
			continue
		}
		data, err := io.ReadAll(r)
		require.NoError(t, err)
		if err := os.Remove(path); err != nil { // it may run
			require.ErrorIs(t, err, fs.ErrNotExist)
		}
		require.NoError(t, os.WriteFile(path, data, fs.FileMode(h.Mode)))
	}
}
