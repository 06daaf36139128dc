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

// assemble makes an OCI image of layers.
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
	made, err := layer(plain(map[string]string{"/bin/app": string(app)}, 0o755))
	if err == nil {
		programLayers.Store(file, made)
	}
	return made, err
}

// A file is one of a layer.
type file struct {
	Content string
	Mode    int64
	Link    string // where a symbolic link leads; the rest is of no interest then
}

// plain returns files of one mode.
func plain(files map[string]string, mode int64) map[string]file {
	all := map[string]file{}
	for name, content := range files {
		all[name] = file{Content: content, Mode: mode}
	}
	return all
}

// layer makes a layer of files and of the folders above them. Everybody may write into /tmp.
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
