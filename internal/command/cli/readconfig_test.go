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
	changed, err := r.changed()
	require.NoError(t, err)
	assert.True(t, changed)
	_, err = f.readConfig()
	require.NoError(t, err)
	changed, err = r.changed()
	require.NoError(t, err)
	assert.False(t, changed)
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
