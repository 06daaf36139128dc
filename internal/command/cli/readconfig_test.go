package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

func TestNoConfigurationIsReadThatOthersCanWrite(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	require.NoError(t, os.WriteFile(file, []byte("backends: [{address: /run/x.sock}]\n"), 0o600))
	require.NoError(t, os.Chmod(file, 0o666))
	_, err := (&Flags{config: file}).readConfig()
	require.ErrorContains(t, err, "chmod o-w "+file)
}

func TestAFileThatChangesDuringTheStartIsReadAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	write := func(text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o600)) }
	write("backends: [{address: /run/a.sock}]\n")
	fs, f := NewFlags()
	require.NoError(t, f.parse(fs, []string{"-config", file}))
	_, err := f.readConfig()
	require.NoError(t, err)
	write("backends: [{address: /run/b.sock}]\n")
	r := &watcher{flags: f} // made once the sockets exist
	assert.False(t, r.changed(), "it may still be written")
	assert.True(t, r.changed())
	_, err = f.readConfig()
	require.NoError(t, err)
	assert.False(t, r.changed())
}

// Only the folder of the path itself was watched: the file that a symbolic link names changed, and nothing happened. See issue
// 40.
func TestAConfigurationIsWatchedAtEachLevelOfLinks(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, folder := range []string{"etc", "opt/v1", "opt/v2"} {
		require.NoError(t, os.MkdirAll(at(folder), 0o700))
	}
	require.NoError(t, os.Symlink("../opt/current/c.yaml", at("etc/c.yaml")))
	require.NoError(t, os.Symlink("v1", at("opt/current")))
	r := &watcher{flags: &Flags{config: at("etc/c.yaml")}}
	seen := func(what string, change func() error) {
		t.Helper()
		require.NoError(t, change())
		assert.False(t, r.changed(), what+": it may still be written")
		assert.True(t, r.changed(), what)
		r.flags.content = r.was
	}
	write := func(file, text string) func() error {
		return func() error { return os.WriteFile(at(file), []byte(text), 0o600) }
	}
	seen("the file is made", write("opt/v1/c.yaml", "made"))
	seen("the file changes", write("opt/v1/c.yaml", "changed"))
	require.NoError(t, write("opt/v2/c.yaml", "another")())
	require.NoError(t, os.Symlink("v2", at("opt/next")))
	seen("a folder is replaced", func() error { return os.Rename(at("opt/next"), at("opt/current")) })
	seen("the new file changes", write("opt/v2/c.yaml", "its change"))
	seen("a file takes the link's place", func() error { return os.Rename(at("opt/v1/c.yaml"), at("etc/c.yaml")) })
}

func TestTheFileInEtcIsReadIfNothingElseIsSaid(t *testing.T) {
	file := t.TempDir() + "/config.yaml"
	read := func(args ...string) (*config.Config, *Flags, error) {
		fs, f := NewFlags()
		f.fallback = file
		require.NoError(t, f.parse(fs, args))
		c, err := f.readConfig()
		return c, f, err
	}
	_, _, err := read()
	require.ErrorContains(t, err, "no runtime to connect to", "it is not there")
	require.NoError(t, os.WriteFile(file, []byte("backends: [{address: /run/a.sock}]\n"), 0o600))
	c, f, err := read("-listen", "/run/b.sock")
	require.NoError(t, err)
	assert.Equal(t, "/run/a.sock", c.Backends[0].Address)
	assert.Equal(t, "/run/b.sock", c.Listen, "flags override the file")
	assert.Equal(t, file, f.config, "it is watched")
	for _, args := range [][]string{{"-connect", "/run/c.sock"}, {"-remote-runtime-service-endpoint", "/run/c.sock", "-koord-runtimeproxy-endpoint", testkit.SocketDir(t) + "/p.sock"}} {
		c, f, err = read(args...)
		require.NoError(t, err)
		assert.Equal(t, "/run/c.sock", c.Backends[0].Address)
		assert.Empty(t, f.config)
	}
}
