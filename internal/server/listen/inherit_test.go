package listen

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// systemd passes the sockets of a .socket unit first, and then those in its store. If the file was
// replaced in the meantime, it leads to the stored socket.
func TestAStoredSocketIsServedBeforeTheUnitsOwn(t *testing.T) {
	dir := testkit.SocketDir(t)
	path := filepath.Join(dir, "s.sock")
	in := &Inheritance{listeners: map[string]net.Listener{}}
	for range 2 {
		_ = os.Remove(path) // there is no file the first time
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		require.NoError(t, err)
		l.SetUnlinkOnClose(false)
		f, err := l.File()
		require.NoError(t, err)
		require.NoError(t, l.Close())
		require.NoError(t, in.add(f, ""))
	}
	l := in.Take(path)
	defer l.Close() // the error would change nothing
	conn, err := net.Dial("unix", path)
	require.NoError(t, err)
	defer conn.Close() // nothing was sent
	accepted, err := l.Accept()
	require.NoError(t, err)
	require.NoError(t, accepted.Close())
}

// After a restart with another path of listen, systemd passes the socket of the old path. If it kept
// that socket, clients would still connect to the old path, and wait for ever.
func TestAnUnusedSocketLeavesTheStoreOfSystemd(t *testing.T) {
	dir := testkit.SocketDir(t)
	systemd, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
	require.NoError(t, err)
	defer systemd.Close() // nothing is left to be read
	t.Setenv("NOTIFY_SOCKET", filepath.Join(dir, "notify"))
	path := filepath.Join(dir, "old.sock")
	inheritedAt(t, path, 0o600).CloseRest()
	require.NoError(t, systemd.SetReadDeadline(time.Now().Add(testkit.Patience)))
	text := make([]byte, 4096)
	n, err := systemd.Read(text)
	require.NoError(t, err, "without systemd there is nothing to notify")
	assert.Equal(t, "FDSTOREREMOVE=1\nFDNAME="+storeName(path), string(text[:n]))
}

// With ListenStream= under /var/run, criproxy did not start, because its own socket was already served. See issue 40.
func TestAnInheritedSocketIsFoundInAnotherSpelling(t *testing.T) {
	dir := testkit.SocketDir(t)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "run"), 0o700))
	require.NoError(t, os.Symlink("run", filepath.Join(dir, "varrun")))
	in := inheritedAt(t, filepath.Join(dir, "run/c.sock"), 0o600)
	assert.Nil(t, in.Take(filepath.Join(dir, "run/d.sock")))
	assert.NotNil(t, in.Take(filepath.Join(dir, "varrun/c.sock")))
	assert.Nil(t, in.Take(filepath.Join(dir, "varrun/c.sock")), "once")
}
