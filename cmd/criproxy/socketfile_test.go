package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// Removing the socket file must not disconnect the node: connected clients stay connected, and new
// clients find a socket again.
func TestDeletedSocketFilesAreRecreated(t *testing.T) {
	t.Parallel()
	p := startedProcess(t)
	own := config.AdminBeside(p.front)
	connected := p.connect(p.front)
	require.NoError(t, p.version(connected))
	was, err := os.Stat(p.front)
	require.NoError(t, err)
	for range 3 {
		for _, path := range []string{p.front, own} {
			require.NoError(t, os.Remove(path))
		}
		testkit.Eventually(t, "the sockets are there again", func() bool { return testkit.Connects(p.front) && testkit.Connects(own) })
		require.NoError(t, p.version(connected), "a connected client stays connected")
		require.NoError(t, p.version(p.connect(p.front)))
		info, err := os.Stat(p.front)
		require.NoError(t, err)
		assert.Equal(t, was.Mode(), info.Mode())
		assert.Equal(t, was.Sys().(*syscall.Stat_t).Uid, info.Sys().(*syscall.Stat_t).Uid)
		info, err = os.Stat(own)
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(admin.Mode), info.Mode().Perm())
	}
	text, r := p.status()
	assert.True(t, r.Ready)
	assert.EqualValues(t, 3, r.Listeners[0].Lost)
	assert.Contains(t, text, "made it again (3 times so far)")
	assert.Equal(t, 6, p.logged("Restored a socket file"), "of both, each time")

	t.Run("it goes on after a handover", func(t *testing.T) {
		p.handOver()
		require.NoError(t, os.Remove(p.front))
		testkit.Eventually(t, "the socket is there again", func() bool { return testkit.Connects(p.front) })
		require.NoError(t, p.version(p.connect(p.front)))
	})
	p.end()
	assert.NoFileExists(t, p.front)
}

func TestASocketFileOfAnotherProcessIsLeftAlone(t *testing.T) {
	t.Parallel()
	p := startedProcess(t)
	connected := p.connect(p.front)
	require.NoError(t, p.version(connected))
	require.NoError(t, os.Rename(p.front, p.front+".away")) // so that the next file does not get its inode
	other, err := net.Listen("unix", p.front)
	require.NoError(t, err)
	const said = "cannot be restored"
	testkit.Eventually(t, "it is said", func() bool { return p.logged(said) > 0 })
	text, r := p.status()
	assert.False(t, r.Ready)
	assert.Contains(t, text, "NOT READY: no client can connect")
	assert.Contains(t, r.Listeners[0].Error, "already serves it", "the error names the process")
	assert.NoError(t, p.version(connected), "a connected client stays connected")
	for range 3 { // criproxy connects to check whether a process serves the file
		tried, err := other.Accept()
		require.NoError(t, err)
		require.NoError(t, tried.Close())
	}
	assert.Equal(t, 1, p.logged(said), "once, however often it was tried")

	require.NoError(t, other.Close())
	testkit.Eventually(t, "it is made anew when the other one has gone", func() bool { return p.version(p.connect(p.front)) == nil })
	_, r = p.status()
	assert.True(t, r.Ready)

	t.Run("nor removed in the end", func(t *testing.T) {
		require.NoError(t, os.Rename(p.front, p.front+".away2"))
		other, err := net.Listen("unix", p.front)
		require.NoError(t, err)
		defer other.Close()
		pid := p.serving()
		require.NoError(t, syscall.Kill(pid, syscall.SIGTERM))
		testkit.Eventually(t, "it has ended", func() bool { _, err := os.Stat(config.AdminBeside(p.front)); return err != nil })
		assert.FileExists(t, p.front)
	})
}

// When a reload moves the main socket, status and metrics are about the new one, to which kubelet
// should connect.
func TestReadyIsAboutTheMainSocketAfterItHasMoved(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	was, second, run := p.front, filepath.Join(p.dir, "second.sock"), filepath.Join(p.dir, "run")
	more := fmt.Sprintf("admin: %s\nlisteners: [{path: %s}]\n", config.AdminBeside(was), second)
	p.write(more)
	cmd := p.launch()
	require.NoError(t, os.Mkdir(run, 0o755))
	moved := filepath.Join(run, "moved.sock")
	p.front = moved
	p.write(more)
	p.front = was // where the admin socket stays
	testkit.Eventually(t, "it is reloaded", func() bool { _, r := p.status(); return r.Config.Reloads > 0 })
	_, r := p.status()
	var paths []string
	for _, l := range r.Listeners {
		paths = append(paths, l.Path)
	}
	assert.Equal(t, []string{moved, second}, paths)
	ready := func() bool { _, r := p.status(); return r.Ready }
	require.True(t, ready())
	require.NoError(t, os.RemoveAll(run))
	testkit.Eventually(t, "criproxy notices that no client can connect there", func() bool { return !ready() })
	require.NoError(t, os.Mkdir(run, 0o755))
	testkit.Eventually(t, "it is made anew", ready)
	p.end()
	assert.NoError(t, cmd.Wait())
}

// An administrator who tightens the mode of a socket relies on it as soon as criproxy reports that it has
// reloaded its configuration.
func TestAChangedModeTakesEffectOnReload(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	reloads := 0
	becomes := func(listeners string, want os.FileMode) {
		reloads++
		p.write(listeners)
		testkit.Eventually(t, "it is reloaded", func() bool { _, r := p.status(); return r.Config.Reloads == reloads })
		info, err := os.Stat(p.front)
		require.NoError(t, err)
		assert.Equal(t, want, info.Mode().Perm(), listeners)
	}
	mode := func(m string) string { return fmt.Sprintf("listeners: [{path: %s, mode: %q}]\n", p.front, m) }
	require.NoError(t, os.Chmod(filepath.Join(p.dir, "0.sock"), 0o640))
	p.write(mode("0666"))
	p.launch()
	connected := p.connect(p.front)
	require.NoError(t, p.version(connected))
	becomes("", 0o640) // the primary's
	becomes(mode("0606"), 0o606)
	becomes(mode("0600"), 0o600)
	assert.NoError(t, p.version(connected), "a connected client stays connected")

	t.Run("a file that is made anew has it", func(t *testing.T) {
		require.NoError(t, os.Remove(p.front))
		testkit.Eventually(t, "it is there again", func() bool { _, err := os.Lstat(p.front); return err == nil })
		assert.Contains(t, testkit.FileRights(t, p.front), "0600")
	})
	t.Run("a process that takes over leaves it", func(t *testing.T) {
		p.handOver()
		assert.Contains(t, testkit.FileRights(t, p.front), "0600")
	})
}
