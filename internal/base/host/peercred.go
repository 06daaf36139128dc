// This file asks the kernel which process is at the other end of a unix connection.

package host

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Process describes a process at the time when it connected or began to listen: unix(7),
// SO_PEERCRED.
type Process struct {
	PID      int32
	UID, GID uint32
	Name     string // of the program, in at most 15 bytes; empty if the process has ended
}

// String returns the name and the number of the process.
func (p Process) String() string {
	if p.Name == "" {
		return fmt.Sprintf("process %d", p.PID)
	}
	return fmt.Sprintf("%s (process %d)", p.Name, p.PID)
}

// Of returns the process at the other end of conn. It fails for a connection that is not a unix
// socket.
func Of(conn net.Conn) (Process, error) {
	var p Process
	err := control(conn, func(fd uintptr) error {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err == nil {
			p = Process{PID: cred.Pid, UID: cred.Uid, GID: cred.Gid}
		}
		return err
	})
	if err != nil {
		return p, fmt.Errorf("asking the kernel for the process at the other end: %w", err)
	}
	if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p.PID)); err == nil {
		p.Name = strings.TrimSpace(string(comm))
	}
	return p, nil
}

// Groups returns the supplementary groups of the process at the other end, which SO_PEERCRED
// lacks. It returns nil if the kernel cannot tell them, as before Linux 4.13.
func Groups(conn net.Conn) []uint32 {
	gids := make([]uint32, 64)
	err := control(conn, func(fd uintptr) error {
		for {
			size := uint32(len(gids) * 4)
			_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
				uintptr(unsafe.Pointer(&gids[0])), uintptr(unsafe.Pointer(&size)), 0)
			switch {
			case errno == 0:
				gids = gids[:size/4]
				return nil
			case errno == syscall.ERANGE && int(size/4) > len(gids):
				gids = make([]uint32, size/4)
			default:
				return errno
			}
		}
	})
	if err != nil {
		return nil
	}
	return gids
}

// Serving connects to a socket, sends nothing, and returns the process that serves it. If no
// process does, the error is that of the connection.
func Serving(path string) (Process, error) {
	conn, err := net.DialTimeout("unix", path, 5*time.Second)
	if err != nil {
		return Process{}, err
	}
	defer conn.Close() // nothing was sent
	return Of(conn)
}

// control calls f with the descriptor of a unix connection.
func control(conn net.Conn, f func(fd uintptr) error) error {
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return errors.New("it is not a unix socket")
	}
	raw, err := unixConn.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = f(fd) }); err != nil {
		return err
	}
	return failed
}
