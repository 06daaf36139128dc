package transport

import (
	"net"
	"syscall"

	"github.com/mdlayher/vsock"
	"golang.org/x/sys/unix"
)

// A rawWriter writes to a socket as much as the kernel takes without blocking. It belongs to the
// goroutine that writes.
type rawWriter struct {
	conn  syscall.RawConn // nil: not a socket, such as a TLS connection; the rawWriter writes nothing
	one   []byte
	parts [][]byte
	n     int
	err   error
	call  func(fd uintptr) bool // w.try, allocated once
}

// open makes w write to nc, if nc is a socket.
func (w *rawWriter) open(nc net.Conn) {
	switch nc.(type) {
	case *socket, *net.UnixConn, *net.TCPConn, *vsock.Conn:
	default:
		return // gRPC's TLS connections have a SyscallConn too, that of the underlying socket
	}
	if rc, err := nc.(syscall.Conn).SyscallConn(); err == nil {
		w.conn, w.call = rc, w.try
	}
}

// write writes as much of b as it can without blocking.
func (w *rawWriter) write(b []byte) (int, error) {
	if w.conn == nil {
		return 0, nil
	}
	w.one = b
	n, err := w.do()
	w.one = nil
	return n, err
}

// writev is write for several pieces.
func (w *rawWriter) writev(parts [][]byte) (int, error) {
	w.parts = parts
	n, err := w.do()
	w.parts = nil
	return n, err
}

// do makes the system call for one or parts. RawConn.Write keeps the descriptor open meanwhile.
func (w *rawWriter) do() (int, error) {
	w.n, w.err = 0, nil
	if err := w.conn.Write(w.call); err != nil {
		return w.n, err
	}
	return w.n, w.err
}

// try writes once to the socket fd. It always reports true, so that RawConn.Write does not wait,
// even if the kernel took nothing.
func (w *rawWriter) try(fd uintptr) bool {
	for {
		if w.one != nil {
			w.n, w.err = writeNow(int(fd), w.one)
		} else {
			happensBefore(int(fd))
			w.n, w.err = unix.Writev(int(fd), w.parts)
		}
		w.n = max(w.n, 0)
		switch w.err {
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			w.err = nil
		}
		return true
	}
}
