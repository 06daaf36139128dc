// Package containerfile builds the image of packaging/container/Containerfile on machines that cannot fetch base images.
package containerfile

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/testbed/build"
)

// A stage is a stage of a Containerfile during the build: its root folder, and its working directory.
type stage struct {
	base, root, workdir string
	cmd                 []string
}

// Build builds the image of the Containerfile line by line, as podman build would, with this machine in place of its
// first base image, and Debian's busybox in place of the second one. A line that it does not understand fails the test.
func Build(t *testing.T, version string) v1.Image {
	t.Helper()
	source, err := build.SourceDir()
	require.NoError(t, err)
	source = filepath.Dir(source)
	text, err := os.ReadFile(filepath.Join(source, "packaging/container/Containerfile"))
	require.NoError(t, err)

	shell := func(dir, script string, args ...string) {
		t.Helper()
		cmd := exec.Command("sh", append([]string{"-ec", script, "sh"}, args...)...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "VERSION="+version, "GOWORK=off")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s\n%s", script, out)
	}
	stages := map[string]*stage{}
	var now *stage
	for line := range strings.Lines(string(text)) {
		instruction, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		args := strings.Fields(rest)
		switch {
		case instruction == "" || strings.HasPrefix(instruction, "#"):
		case instruction == "FROM":
			now = &stage{base: args[0], root: t.TempDir(), workdir: "/"}
			if len(args) == 3 && args[1] == "AS" {
				stages[args[2]] = now
			}
			if strings.HasPrefix(now.base, "docker.io/library/busybox:") {
				shell(now.root, `mkdir bin tmp; cp "$(command -v busybox)" bin; for a in $(busybox --list); do [ $a = busybox ] || ln -s busybox bin/$a; done`)
			} else {
				require.Contains(t, now.base, "docker.io/library/golang:")
			}
		case instruction == "ARG": // the environment has it
			require.Equal(t, "VERSION=0.0.0-devel", rest)
		case instruction == "WORKDIR":
			now.workdir = rest
			require.NoError(t, os.MkdirAll(filepath.Join(now.root, rest), 0o755))
		case line == "COPY . .\n": // all files that git does not ignore; podman would copy more
			shell(source, `git ls-files -z --cached --others --exclude-standard | tar -c --null -T - | tar -x -C "$1"`, filepath.Join(now.root, now.workdir))
		case instruction == "COPY":
			from := source
			if name, ok := strings.CutPrefix(args[0], "--from="); ok {
				require.Contains(t, stages, name)
				from, args = stages[name].root, args[1:]
			}
			require.Len(t, args, 2, line)
			shell("/", `mkdir -p "${2%/*}"; cp "$1" "$2"`, filepath.Join(from, args[0]), filepath.Join(now.root, args[1]))
		case instruction == "RUN": // not in a chroot, so paths are replaced by paths in the root folder
			require.Contains(t, rest, " /criproxy")
			shell(filepath.Join(now.root, now.workdir), strings.ReplaceAll(rest, " /criproxy", " "+now.root+"/criproxy"))
		case instruction == "CMD":
			require.NoError(t, json.Unmarshal([]byte(rest), &now.cmd), line)
		default:
			require.Fail(t, "this line of the Containerfile is not understood here", line)
		}
	}
	return imageOf(t, now)
}

// imageOf packs the root folder of a stage.
func imageOf(t *testing.T, s *stage) v1.Image {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	require.NoError(t, w.AddFS(os.DirFS(s.root)))
	require.NoError(t, w.Close())
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil })
	require.NoError(t, err)
	image, err := mutate.AppendLayers(empty.Image, layer)
	require.NoError(t, err)
	image, err = mutate.Config(image, v1.Config{
		Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, Cmd: s.cmd,
	})
	require.NoError(t, err)
	return image
}
