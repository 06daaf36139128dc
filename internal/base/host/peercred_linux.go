package host

import (
	"net"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// peer returns the process at the other end of a socket, without its name.
func peer(fd int) (Process, error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return Process{}, err
	}
	return Process{PID: cred.Pid, UID: cred.Uid, GID: cred.Gid}, nil
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
