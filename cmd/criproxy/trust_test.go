package main

import (
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// open makes a folder that everybody can write to.
func open(t *testing.T) string {
	dir, err := os.MkdirTemp("", "open") // t.TempDir is too long for a socket
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) }) // nothing is left to be done
	require.NoError(t, os.Chmod(dir, 0o777))
	return dir
}

func TestNothingIsReadFromOrMadeWhereOthersCanWrite(t *testing.T) {
	dir := open(t)
	_, err := listenAs(filepath.Join(dir, "s.sock"), 0o660, "-listen")
	require.ErrorContains(t, err, "another user could put a socket in its place")
	assert.ErrorContains(t, err, "chmod o-w "+dir)

	config := filepath.Join(t.TempDir(), "c.yaml")
	require.NoError(t, os.WriteFile(config, []byte("backends: [{address: /run/x.sock}]\n"), 0o600))
	require.NoError(t, os.Chmod(config, 0o666))
	_, err = (&flags{config: config}).readConfig()
	require.ErrorContains(t, err, "chmod o-w "+config)

	cfg := &Config{StateDir: dir, Backends: make([]BackendConfig, 2)}
	cfg.makeStateDir()
	assert.Empty(t, cfg.StateDir, "what lists say would be in others' hands")
}

// A symbolic link where the socket is to be: whoever made it wants root to make, or to
// give away, something elsewhere.
func TestASymbolicLinkInPlaceOfTheSocketIsNotFollowed(t *testing.T) {
	dir, err := os.MkdirTemp("", "link")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) }) // nothing is left to be done
	shadow := filepath.Join(dir, "shadow")
	require.NoError(t, os.WriteFile(shadow, []byte("root"), 0o600))
	for _, target := range []string{shadow, filepath.Join(dir, "absent")} {
		path := filepath.Join(dir, "s.sock")
		require.NoError(t, os.Symlink(target, path))
		_, err := listenAs(path, 0o666, "-listen")
		require.ErrorContains(t, err, "there is a file that is no socket")
		require.NoError(t, os.Remove(path))
	}
	info, err := os.Stat(shadow)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode())
	assert.NoFileExists(t, filepath.Join(dir, "absent"))
}

// The mode is there before anybody can connect: not a moment of it is another one.
func TestASocketIsNeverOpenToMoreThanItShouldBe(t *testing.T) {
	dir, err := os.MkdirTemp("", "mode")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) }) // nothing is left to be done
	path := filepath.Join(dir, "s.sock")
	done := make(chan struct{})
	seen := map[os.FileMode]int{}
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for {
			select {
			case <-done:
				return
			default:
			}
			if info, err := os.Lstat(path); err == nil {
				seen[info.Mode().Perm()]++
			}
		}
	}()
	old := syscall.Umask(0) // the worst that can be
	defer syscall.Umask(old)
	for range 300 {
		l, err := listenAs(path, 0o600, "-listen")
		require.NoError(t, err)
		l.(*net.UnixListener).SetUnlinkOnClose(true)
		require.NoError(t, l.Close())
	}
	close(done)
	<-watched
	delete(seen, 0o600)
	assert.Empty(t, seen)
}
