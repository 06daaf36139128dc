package host

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Paths were compared as texts, so that one socket had two names. See issue 40.
func TestASocketIsItselfUnderEachOfItsNames(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "same")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	at := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, os.Mkdir(at("run"), 0o700))
	require.NoError(t, os.Symlink("run", at("varrun")))
	require.NoError(t, os.Symlink("varrun/a.sock", at("link.sock")))
	require.NoError(t, os.Symlink("loop.sock", at("loop.sock")))
	names := []string{at("run/a.sock"), at("varrun/a.sock"), at("link.sock"), dir + "//run/./a.sock", dir + "/varrun/../run/a.sock"}
	claim := func(when string) {
		for _, a := range names {
			for _, b := range names {
				assert.True(t, SameSocket(a, b), "%s: %s and %s", when, a, b)
			}
			for _, b := range []string{at("run/b.sock"), at("a.sock"), at("loop.sock"), "10.0.0.1:1", ""} {
				assert.False(t, SameSocket(a, b), "%s: %s and %s", when, a, b)
				assert.False(t, SameSocket(b, a), "%s: %s and %s", when, b, a)
			}
		}
	}
	claim("no process listens")
	for _, name := range []string{"a.sock", "b.sock"} {
		l, err := net.Listen("unix", at("run/"+name))
		require.NoError(t, err)
		defer l.Close()
	}
	require.NoError(t, os.Link(at("run/a.sock"), at("hard.sock")))
	names = append(names, at("hard.sock"))
	claim("a process listens")
	assert.True(t, SameSocket("10.0.0.1:1", "10.0.0.1:1"))
}
