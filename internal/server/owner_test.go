package server

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// A second criproxy on trial, with the default folder, replaced what the first one remembered. When that one restarted in
// an outage, it listed the pods of a stranger, and kubelet killed its own. See issue 40.
func TestASecondCriproxyLeavesTheCacheOfTheFirst(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	n.run(1, "db", 1)
	n.known()
	before, err := listPods(nil).unary(n)
	require.NoError(t, err)

	trial := newNode(t, func(c *config.Config) { c.StateDir = n.cfg.StateDir })
	assert.Empty(t, trial.proxy.Config().StateDir, "it runs without a folder")
	assert.NotEmpty(t, testkit.LogLines(n.cfg.StateDir, "belongs to another criproxy", "which serves "+n.cfg.Listen, "-state-dir"), "and says why")
	trial.run(1, "stranger", 1)
	trial.known()
	trial.stop()

	n.runtimes[1].Kill()
	n.isDown(1)
	n.stop()
	n.start()
	after, err := listPods(nil).unary(n)
	require.NoError(t, err)
	require.Len(t, after, len(before))
	for i := range after {
		assertProto(t, before[i], after[i])
	}
}

// A process that was killed looks dead before the last of its threads has given the lock back. The next one then kept
// nothing, so in an outage it knew no pods.
func TestAStartWaitsForTheLockOfAKilledProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	killed, err := own(dir, "/run/killed.sock")
	require.NoError(t, err)
	time.AfterFunc(200*time.Millisecond, killed.release)
	n := newNode(t, func(c *config.Config) { c.StateDir = dir })
	assert.Equal(t, dir, n.proxy.Config().StateDir)
}

// A reload moved the cache and the lock to another folder, and left the history and the recorder in the one before, which
// another process could take.
func TestAReloadKeepsTheStateFolder(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	free := func(dir string) bool {
		o, err := own(dir, "a test", "runtime.v1")
		o.release()
		return err == nil
	}
	<-n.proxy.Serving()
	first, other := n.cfg.StateDir, n.cfg.StateDir+".other"
	c := *n.cfg
	c.StateDir = other
	_, err := n.proxy.Reload(&c)
	require.NoError(t, err)
	assert.Contains(t, strings.Join(n.proxy.config.Load().NeedsRestart, "\n"), other)
	assert.Equal(t, first, n.proxy.Config().StateDir)
	assert.False(t, free(first))
	assert.NoDirExists(t, other)
	n.stop()
	assert.True(t, free(first))
}

func TestAHandoverPassesTheStateFolderOn(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	<-n.proxy.Serving()
	var successor *Proxy
	for _, failure := range []error{errors.New("it does not serve"), nil} {
		n.proxy.machine.Succeed = func(_ context.Context, caches net.Conn) error {
			predecessor, err := ReadPredecessor(caches)
			require.NoError(t, err)
			c := *n.cfg
			successor, err = New(&c, Options{Predecessor: predecessor})
			require.NoError(t, err)
			assert.Equal(t, n.cfg.StateDir, c.StateDir, "the successor has the folder")
			if failure != nil {
				time.AfterFunc(200*time.Millisecond, successor.Close) // the lock of a killed process is there for a moment
			}
			return failure
		}
		require.ErrorIs(t, n.proxy.HandOver(t.Context()), failure)
		require.Equal(t, failure != nil, n.proxy.owner.has(n.cfg.StateDir))
		_, err := own(n.cfg.StateDir, "a stranger")
		require.ErrorIs(t, err, errOwned, "no other process has it")
	}
	successor.predecessor.close() // the old process waits for it
	n.stop()
	_, err := own(n.cfg.StateDir, "a stranger")
	assert.ErrorIs(t, err, errOwned, "the end of the old process changes nothing")
	successor.Close()
}

// A criproxy for another API, with the default folder, showed the runtimes, errors and calls of the one before it.
func TestAStateFolderBelongsToOneAPI(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	n.known()
	n.stop()
	dir, c := n.cfg.StateDir, *n.cfg
	files := func() map[string]string {
		all := map[string]string{}
		paths, err := filepath.Glob(filepath.Join(dir, "*"))
		require.NoError(t, err)
		for _, path := range paths {
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			all[path] = string(data)
		}
		return all
	}
	before := files()
	library := filepath.Join("..", "testing", "muxtest", "library")
	c.Profile, c.Proto = library+".yaml", []string{library + ".proto"}
	other, err := New(&c, Options{Machine: n.proxy.machine})
	require.NoError(t, err)
	assert.Empty(t, other.Config().StateDir, "it runs without a folder")
	assert.NotEmpty(t, testkit.LogLines(dir, "belongs to the API runtime.v1", "-state-dir"), "and says why")
	assert.Empty(t, other.changes.Latest())
	other.Close()
	assert.Equal(t, before, files())
	o, err := own(dir, "a newer version of the API", "runtime.v2", "runtime.v1")
	require.NoError(t, err)
	o.release()
}

// The file of a release, or of before 1.0, is that of an owner that has ended, also with more lines. A newer version means that
// this criproxy would misread the folder.
func TestAFolderOfANewerVersionIsLeftAlone(t *testing.T) {
	t.Parallel()
	releases, err := filepath.Glob("../../testdata/compat/*/state/" + ownerFile)
	require.NoError(t, err)
	require.NotEmpty(t, releases)
	for _, path := range releases {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		written, dir := string(data), t.TempDir()
		with := func(version string) string { return strings.Replace(written, "version 1\n", version, 1) }
		for text, ours := range map[string]bool{written: true, written + "more\n": true, with(""): true, with("version 2\n"): false} {
			require.NoError(t, os.WriteFile(filepath.Join(dir, ownerFile), []byte(text), 0o600))
			o, err := own(dir, "/run/b.sock", "runtime.v1", "runtime.v1alpha2", "runtime")
			now, _ := os.ReadFile(filepath.Join(dir, ownerFile)) // it is there
			if !ours {
				assert.ErrorContains(t, err, "only a newer criproxy can use it, because its owner.lock has version 2")
				assert.Equal(t, text, string(now))
				continue
			}
			require.NoError(t, err, text)
			o.release()
			_, before, _ := strings.Cut(written, "\n")
			_, after, _ := strings.Cut(string(now), "\n")
			assert.True(t, strings.HasPrefix(after, before), "lines are only added: %s", now)
		}
	}
}

// A folder that no process has locked can have a file of an earlier owner, as after a crash.
func TestOnlyTheLockOwnsAFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, ownerFile), []byte("process 1, which serves /run/a.sock\n"), 0o600))
	o, err := own(dir, "/run/b.sock")
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(dir))
	assert.False(t, o.has(dir), "a folder that was made anew has no owner yet")
	o.release()
}
