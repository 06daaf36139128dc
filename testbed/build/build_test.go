package build

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/testbed/host"
)

// toy is a component with one program, which needs no network to build.
func toy(t *testing.T, program string) (c component, source string) {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("left out: no go command in PATH")
	}
	source = t.TempDir()
	for name, content := range map[string]string{
		"toy/go.mod":  "module toy\n\ngo 1.24\n",
		"toy/main.go": program,
	} {
		file := filepath.Join(source, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(content), 0o644))
	}
	return component{name: "toy", dir: "toy", packages: []string{"."}, binaries: []string{"toy"}, inputs: []string{"*"}}, source
}

const fine = "package main\n\nfunc main() {}\n"

// A lines collects progress. Several builds write to it at once.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func TestManyAtOnceBuildOnce(t *testing.T) {
	c, source := toy(t, fine)
	cache := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(cache, ".building-toy", "rubbish"), 0o755)) // of a process that died
	var progress lines
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			dir, err := build(t.Context(), &progress, c, source, cache)
			if assert.NoError(t, err) {
				assert.NoError(t, host.Command(t.Context(), filepath.Join(dir, "toy")).Run())
			}
		})
	}
	all.Wait()
	assert.Equal(t, 2, strings.Count(progress.text.String(), "building toy local ..."), "once when it begins, once when it is done:\n%s", &progress.text)
	assert.NoDirExists(t, filepath.Join(cache, ".building-toy"))
}

func TestABuildThatFailsSaysWhyAndLeavesNothing(t *testing.T) {
	c, source := toy(t, "package main\n\nfunc main() { nowhere() }\n")
	cache := t.TempDir()
	_, err := build(t.Context(), &lines{}, c, source, cache)
	assert.ErrorContains(t, err, "undefined: nowhere")
	assert.ErrorContains(t, err, "Go module proxy must be reachable")
	found, _ := filepath.Glob(filepath.Join(cache, "*"))
	assert.Equal(t, []string{filepath.Join(cache, "toy.lock")}, found)
}

func TestKeysFollowWhatIsBuilt(t *testing.T) {
	c, source := toy(t, fine)
	first, err := c.key(source, "v1.2.3")
	require.NoError(t, err)
	assert.Regexp(t, `^toy-v1\.2\.3-[0-9a-f]{10}$`, first)
	again, err := c.key(source, "v1.2.3")
	require.NoError(t, err)
	assert.Equal(t, first, again)

	recipe := c
	recipe.tags = "other"
	other, err := recipe.key(source, "v1.2.3")
	require.NoError(t, err)
	assert.NotEqual(t, first, other)
	require.NoError(t, os.WriteFile(filepath.Join(source, "toy", "go.sum"), []byte("other"), 0o644))
	other, err = c.key(source, "v1.2.3")
	require.NoError(t, err)
	assert.NotEqual(t, first, other)
}

func TestVersionsComeFromThePins(t *testing.T) {
	source, err := SourceDir()
	require.NoError(t, err)
	for _, c := range components {
		version, err := c.version(source)
		require.NoError(t, err)
		switch c.name {
		case Containerd17:
			assert.Regexp(t, `^v1\.7\.\d+$`, version)
		case Containerd24:
			assert.Regexp(t, `^v2\.4\.\d+$`, version)
		case App, NoSeccomp, Guest:
			assert.Equal(t, "local", version)
		case GVisor: // has no releases as a module
			assert.Regexp(t, `^v0\.0\.0-\d+-[0-9a-f]+$`, version)
		default:
			assert.Regexp(t, `^v\d+\.\d+\.\d+(\+incompatible)?$`, version, c.name) // Docker predates modules
		}
	}
}

func TestBuildsAreFreeOfSurprises(t *testing.T) {
	env := Env([]string{"GOFLAGS=-tags=x", "GOOS=plan9", "CGO_CFLAGS=-O0", "GOWORK=/w", "GOPROXY=p", "HOME=/h", "NOEQUALS"}, true)
	assert.Equal(t, []string{"GOPROXY=p", "HOME=/h", "NOEQUALS", "CGO_ENABLED=1", "GOFLAGS=", "GOWORK=off"}, env)
}

func TestUnknownComponentsAreNamed(t *testing.T) {
	_, err := Get(t.Context(), nil, "kubelt")
	assert.ErrorContains(t, err, `"kubelt": no such component (there are containerd17,`)
}

func TestKubernetesVersionsMatch(t *testing.T) {
	source, err := SourceDir()
	require.NoError(t, err)
	c, err := componentNamed(Kubelet)
	require.NoError(t, err)
	version, err := c.version(source)
	require.NoError(t, err)
	mod, err := os.ReadFile(filepath.Join(source, c.dir, "go.mod"))
	require.NoError(t, err)
	part := strings.Replace(version, "v1.", "v0.", 1)
	n := 0
	for line := range strings.Lines(string(mod)) {
		if name, with, ok := strings.Cut(strings.TrimSpace(line), " => "); ok {
			assert.Equal(t, name+" "+part, with)
			n++
		}
	}
	assert.Greater(t, n, 30)
}
