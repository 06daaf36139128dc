package main

import (
	"bytes"
	"context"
	"flag"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// TestMain lets the test binary be the programs that up starts: itself, and something in place of
// criproxy.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 1 && os.Args[1] == "registry":
		main()
	case os.Getenv("TESTBED_TEST_PROXY") == "relay":
		relay()
	case os.Getenv("TESTBED_TEST_PROXY") == "broken":
		os.Stderr.WriteString("proxy: no such luck\n")
		os.Exit(1)
	default:
		testbed.Main(m)
	}
}

// relay takes the flags that criproxy does and passes all bytes to the first runtime.
func relay() {
	flag.Int("v", 0, "")
	flag.Bool("logtostderr", false, "")
	connect, listen := flag.String("connect", "", ""), flag.String("listen", "", "")
	flag.Parse()
	primary, _, _ := strings.Cut(*connect, ",")
	listener, err := net.Listen("unix", *listen)
	if err != nil {
		panic(err)
	}
	for {
		front, err := listener.Accept()
		if err != nil {
			panic(err)
		}
		back, err := net.Dial("unix", primary)
		if err != nil {
			front.Close()
			continue
		}
		go func() { io.Copy(back, front); back.Close() }()
		go func() { io.Copy(front, back); front.Close() }()
	}
}

// do runs the command and returns what it printed for people and programs.
func do(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := run(t.Context(), args, &out, t.Output())
	return out.String(), err
}

// folder returns a short folder that is not there yet, and takes down what a failing test leaves in it.
func folder(t *testing.T) string {
	t.Helper()
	testbed.Require(t)
	dir, err := os.MkdirTemp("", "ctb-")
	require.NoError(t, err)
	require.NoError(t, os.Remove(dir))
	t.Cleanup(func() {
		assert.NoError(t, run(context.Background(), []string{"down", "-dir", dir}, io.Discard, t.Output()))
	})
	return dir
}

// make test-all prints this before it begins.
func TestLacksPrintsAReasonForEachTestThatCannotRun(t *testing.T) {
	out, err := do(t, "lacks")
	require.NoError(t, err)
	for _, reason := range testbed.Requirements() {
		assert.Contains(t, out, reason.Error()+"\n")
	}
	assert.Equal(t, len(testbed.Requirements())+len(host.KubeletRequirements()), strings.Count(out, "\n"), out)
}

func TestUpPlayDown(t *testing.T) {
	dir := folder(t)
	t.Setenv("TESTBED_TEST_PROXY", "relay")
	self, err := os.Executable()
	require.NoError(t, err)
	screen, err := do(t, "up", "-dir", dir, "-proxy", self)
	require.NoError(t, err)
	assert.Contains(t, screen, dir+"/criproxy.sock")
	require.NotEmpty(t, host.Leftovers(dir))

	// The commands on the screen work, except those for the second runtime, which need a real proxy.
	_, paste, found := strings.Cut(screen, "Try it:\n")
	require.True(t, found)
	paste, _, found = strings.Cut(paste, "The same on the second")
	require.True(t, found)
	out, err := host.CommandWithin(t.Context(), 3*time.Minute, "/bin/sh", "-e", "-c", strings.Replace(paste, "./crictl logs", "sleep 0.5; ./crictl logs", 1)).CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, want := range []string{"v1.7.", "hello from primary", "PATH=/bin", "play-1.7"} {
		assert.Contains(t, string(out), want)
	}

	state, err := do(t, "status", "-dir", dir)
	require.NoError(t, err)
	assert.Regexp(t, `(?m)^criproxy +running.*pods: 1.*\nprimary +running.*pods: 1.*\ntwo.test +running.*pods: 0.*\nregistry +running`, state)
	_, err = do(t, "up", "-dir", dir)
	assert.ErrorContains(t, err, "is up or half up")

	two, err := runtimes.Open(filepath.Join(dir, "two.test"))
	require.NoError(t, err)
	require.NoError(t, two.Freeze())
	require.NoError(t, place{dir}.daemon("registry").Kill())
	state, err = do(t, "status", "-dir", dir)
	assert.ErrorIs(t, err, errDown)
	assert.Regexp(t, `two.test +frozen.*\nregistry +not running`, state)

	for range 2 {
		_, err = do(t, "down", "-dir", dir)
		require.NoError(t, err)
		assert.Empty(t, host.Leftovers(dir))
		assert.NoDirExists(t, dir)
	}
	_, err = do(t, "status", "-dir", dir)
	assert.ErrorContains(t, err, "nothing is up")
}

func TestAFailedUpTakesItselfDown(t *testing.T) {
	dir := folder(t)
	t.Setenv("TESTBED_TEST_PROXY", "broken")
	self, err := os.Executable()
	require.NoError(t, err)
	_, err = do(t, "up", "-dir", dir, "-proxy", self)
	assert.ErrorContains(t, err, "no such luck")
	assert.Empty(t, host.Leftovers(dir))
	assert.NoDirExists(t, dir)
}

func TestDownMendsACrash(t *testing.T) {
	dir := folder(t)
	_, err := do(t, "up", "-dir", dir)
	require.NoError(t, err)
	for _, name := range []string{"primary", "two.test"} {
		rt, err := runtimes.Open(filepath.Join(dir, name))
		require.NoError(t, err)
		require.NoError(t, rt.Kill())
		require.NoError(t, os.Remove(filepath.Join(rt.Dir, "instance.json")))
	}
	_, err = do(t, "down", "-dir", dir)
	require.NoError(t, err)
	assert.Empty(t, host.Leftovers(dir))
}

func TestMistakesAreNamed(t *testing.T) {
	for want, args := range map[string][]string{
		`unknown command "dwon"`:      {"dwon"},
		"help requested":              {"up", "-directory", "x"},
		`unexpected argument "extra"`: {"up", "extra"},
		`"kubelt": no such component`: {"build", "kubelt"},
	} {
		_, err := do(t, args...)
		assert.ErrorContains(t, err, want)
	}
}

func TestBuildPrintsPaths(t *testing.T) {
	testbed.Require(t)
	out, err := do(t, "build", "runc", "app")
	require.NoError(t, err)
	for line := range strings.Lines(out) {
		_, path, _ := strings.Cut(strings.TrimSpace(line), "\t")
		assert.FileExists(t, path)
	}
}
