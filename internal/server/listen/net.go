package listen

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/mdlayher/vsock"
	"golang.org/x/sys/unix"
)

// listenNet listens at an address that is not a file: HOST:PORT or vsock:CID:PORT.
func listenNet(address string) (net.Listener, error) {
	if !strings.HasPrefix(address, "vsock:") {
		return net.Listen("tcp", address)
	}
	at := &unix.SockaddrVM{}
	if _, err := fmt.Sscanf(address, "vsock:%d:%d", &at.CID, &at.Port); err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("this kernel has no vsock: %w", err)
	}
	f := os.NewFile(uintptr(fd), address)
	defer f.Close() // the listener has its own descriptor
	if err := unix.Bind(fd, at); err != nil {
		return nil, fmt.Errorf("binding: %w", err)
	}
	if err := unix.Listen(fd, unix.SOMAXCONN); err != nil {
		return nil, err
	}
	return vsockListener(f)
}

// vsockListen is a listener that can be passed to another process: vsock's own does not show its descriptor. It owns a second
// descriptor of the socket for that.
type vsockListen struct {
	*vsock.Listener
	file *os.File
}

// vsockListener returns a listener on a vsock socket. The file stays with the caller.
func vsockListener(f *os.File) (net.Listener, error) {
	own, err := duplicate(f, f.Name())
	if err != nil {
		return nil, err
	}
	l, err := vsock.FileListener(own)
	if err != nil {
		own.Close()
		return nil, err
	}
	return &vsockListen{l, own}, nil
}

// SyscallConn returns the socket, for [FileOf].
func (l *vsockListen) SyscallConn() (syscall.RawConn, error) { return l.file.SyscallConn() }

// Close closes the socket.
func (l *vsockListen) Close() error { return errors.Join(l.Listener.Close(), l.file.Close()) }
