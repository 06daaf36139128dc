package listen

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/criproxy/criproxy/internal/base/host"
)

// Unix opens the socket at path, with a mode. It replaces a socket file that no process serves, and
// fails if a process serves the file. Two processes that start at the same time cannot take the
// socket from each other. Errors name flag as the setting of the path.
func Unix(path string, mode os.FileMode, flag string) (net.Listener, error) {
	l, err := openSocket(path, mode, flag)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", path, err)
	}
	return l, nil
}

// openSocket opens the socket. It holds a lock on the folder from the look at the old file until the new one is there.
func openSocket(path string, mode os.FileMode, flag string) (net.Listener, error) {
	dir, err := os.Open(filepath.Dir(path))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("the folder %s does not exist; create it, or choose another path with %s", filepath.Dir(path), flag)
	} else if err != nil {
		return nil, err
	}
	defer dir.Close() // also releases the lock
	if err := host.Folder(filepath.Dir(path), host.Sticky); err != nil {
		return nil, fmt.Errorf("another user could put a socket in its place, and be taken for criproxy: %w; or choose another path with %s", err, flag)
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return nil, fmt.Errorf("locking the folder: %w", err)
	}
	if err := makeWay(path, flag); err != nil {
		return nil, err
	}
	// Create it with its mode: if others could connect for a moment, they might
	// have connected.
	old := unix.Umask(int(0o777 &^ mode))
	l, err := net.Listen("unix", path)
	unix.Umask(old)
	if errors.Is(err, os.ErrPermission) {
		return nil, fmt.Errorf("the folder %s cannot be written to by uid %d; run as root, or choose another path with %s", filepath.Dir(path), os.Getuid(), flag)
	}
	return l, err
}

// makeWay removes a socket file at path that no process serves: only ECONNREFUSED shows that. Any other file, and one about which
// there is doubt, stays.
func makeWay(path, flag string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != os.ModeSocket {
		return fmt.Errorf("there is a file that is not a socket (%s); remove it, or choose another path with %s", info.Mode(), flag)
	}
	conn, err := net.DialTimeout("unix", path, 5*time.Second)
	if err == nil {
		defer conn.Close() // nothing was sent
		return fmt.Errorf("%s already serves it; stop that process, or choose another path with %s", peerName(conn), flag)
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("finding out whether a process serves it: %w", err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("removing the file that an earlier process left there: %w", err)
	}
	return nil
}

// peerName names the process at the other end of a unix connection.
func peerName(conn net.Conn) string {
	p, err := host.Of(conn)
	if err != nil {
		return "another process"
	}
	return p.String()
}
