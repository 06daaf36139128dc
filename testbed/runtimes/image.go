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

// imageSpec says what an image is made of. The zero value is an image that holds nothing but the test
// program and sleeps.
type imageSpec struct {
	App   string            // the program, as built by build.Get; it becomes /bin/app
	Files map[string]string // :: absolute path → content, in a layer of its own
	User  string            // the uid that the program runs as; empty means root
	Cmd   []string          // arguments of /bin/app that a container may replace; empty means sleep
}

// newImage assembles an OCI image in memory. The same spec gives the same digest each time.
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
	rest, err := layer(files, 0o644)
	if err != nil {
		return nil, err
	}

	image := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	image = mutate.ConfigMediaType(image, types.OCIConfigJSON)
	if image, err = mutate.AppendLayers(image, program, rest); err != nil {
		return nil, fmt.Errorf("testbed: assembling an image: %w", err)
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("testbed: assembling an image: %w", err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", runtime.GOARCH
	file.Config = v1.Config{
		User:       spec.User,
		Env:        []string{"PATH=/bin"},
		Entrypoint: []string{"/bin/app"},
		Cmd:        spec.Cmd,
		WorkingDir: "/",
	}
	return mutate.ConfigFile(image, file)
}

// programLayers holds the layer of each program file, which all images share: packing takes a moment.
var programLayers sync.Map // :: path → v1.Layer

func programLayer(file string) (v1.Layer, error) {
	if made, ok := programLayers.Load(file); ok {
		return made.(v1.Layer), nil
	}
	app, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("testbed: reading the test program (it comes from build.Get(ctx, w, build.App)): %w", err)
	}
	made, err := layer(map[string]string{"/bin/app": string(app)}, 0o755)
	if err == nil {
		programLayers.Store(file, made)
	}
	return made, err
}

// layer makes a layer of files and of the folders above them.
func layer(files map[string]string, mode int64) (v1.Layer, error) {
	dirs := map[string]bool{}
	for name := range files {
		for dir := path.Dir(name); dir != "/"; dir = path.Dir(dir) {
			dirs[dir] = true
		}
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, dir := range slices.Sorted(maps.Keys(dirs)) {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir[1:] + "/", Mode: 0o755}); err != nil {
			return nil, fmt.Errorf("testbed: packing %s: %w", dir, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name[1:], Mode: mode, Size: int64(len(files[name]))})
		if err == nil {
			_, err = io.WriteString(w, files[name])
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
