package listen

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// Users of the runtime may use criproxy, unless the configuration says otherwise.
func TestASocketHasOwnerAndModeOfThePrimarysOwn(t *testing.T) {
	testkit.NeedRoot(t, "owners of sockets")
	dir := testkit.SocketDir(t)
	cfg := &config.Config{Backends: []config.Backend{{Address: filepath.Join(dir, "runtime.sock")}}}
	theirs, err := net.Listen("unix", cfg.Backends[0].Address)
	require.NoError(t, err)
	defer theirs.Close()
	require.NoError(t, os.Chmod(cfg.Backends[0].Address, 0o640))
	require.NoError(t, os.Chown(cfg.Backends[0].Address, 12, 34))
	for path, want := range map[string]struct {
		cfg config.Listener
		own string
	}{
		filepath.Join(dir, "as.sock"):    {config.Listener{}, "12:34 0640"},
		filepath.Join(dir, "mode.sock"):  {config.Listener{Mode: "0666"}, "12:34 0666"},
		filepath.Join(dir, "owner.sock"): {config.Listener{Owner: "0:56", Mode: "0660"}, "0:56 0660"},
	} {
		want.cfg.Path = path
		s, err := Open(want.cfg, cfg.Backends[0].Address, nil)
		require.NoError(t, err)
		info, err := os.Lstat(path)
		require.NoError(t, err)
		st := info.Sys().(*syscall.Stat_t)
		assert.Equal(t, want.own, fmt.Sprintf("%d:%d %04o", st.Uid, st.Gid, info.Mode().Perm()))
		require.NoError(t, s.Close())
	}
}

func TestOneOfManyProcessesGetsTheSocket(t *testing.T) {
	dir := testkit.SocketDir(t)
	path := filepath.Join(dir, "s.sock")
	for range 20 {
		left, err := net.Listen("unix", path) // by a process that was killed
		require.NoError(t, err)
		left.(*net.UnixListener).SetUnlinkOnClose(false)
		require.NoError(t, left.Close())
		var got []net.Listener
		var mu sync.Mutex
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				l, err := Unix(path, 0o600, "-listen")
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					got = append(got, l)
					return
				}
				assert.ErrorContains(t, err, "already serves it")
			})
		}
		wg.Wait()
		require.Len(t, got, 1)
		conn, err := net.Dial("unix", path)
		require.NoError(t, err, "the first process keeps it")
		conn.Close()
		require.NoError(t, got[0].Close())
	}
}

// With a symbolic link at the path of the socket, another user could make root create a file
// elsewhere, or give one away.
func TestASymbolicLinkInPlaceOfTheSocketIsNotFollowed(t *testing.T) {
	dir := testkit.SocketDir(t)
	shadow := filepath.Join(dir, "shadow")
	require.NoError(t, os.WriteFile(shadow, []byte("root"), 0o600))
	for _, target := range []string{shadow, filepath.Join(dir, "absent")} {
		path := filepath.Join(dir, "s.sock")
		require.NoError(t, os.Symlink(target, path))
		_, err := Unix(path, 0o666, "-listen")
		require.ErrorContains(t, err, "there is a file that is not a socket")
		require.NoError(t, os.Remove(path))
	}
	info, err := os.Stat(shadow)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode())
	assert.NoFileExists(t, filepath.Join(dir, "absent"))
}

// The socket has its mode before a client can connect.
func TestASocketIsNeverOpenToMoreThanItShouldBe(t *testing.T) {
	dir := testkit.SocketDir(t)
	path := filepath.Join(dir, "s.sock")
	done := make(chan struct{})
	seen := map[os.FileMode]int{}
	var looks atomic.Int32
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
				looks.Add(1)
			}
		}
	}()
	old := syscall.Umask(0) // the worst case
	defer syscall.Umask(old)
	for began := time.Now(); looks.Load() < 3000; {
		require.Less(t, time.Since(began), time.Minute, "nobody has seen the socket often enough")
		l, err := Unix(path, 0o600, "-listen")
		require.NoError(t, err)
		l.(*net.UnixListener).SetUnlinkOnClose(true)
		require.NoError(t, l.Close())
	}
	close(done)
	<-watched
	delete(seen, 0o600)
	assert.Empty(t, seen)
}
