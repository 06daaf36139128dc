package transport

import (
	"io"
	"math"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A socket is a connected unix socket that a [poller] waits for. It is a [net.Conn] and a
// [syscall.Conn].
type socket struct {
	poller        *poller
	local, remote net.Addr

	mu     sync.RWMutex // held for reading while fd is used
	fd     int
	closed bool

	writing sync.Mutex // held by Write: one at a time, as Go has it
	in, out direction
}

// A direction is one half of a socket.
type direction struct {
	news     chan struct{} // has room for one: look again
	may      atomic.Bool   // there may be something to read, or room to write
	over     atomic.Bool   // the peer has ended this half: there is no more news
	deadline atomic.Int64  // as sinceStart counts; 0: there is none

	mu    sync.Mutex
	timer *time.Timer // for deadline; nil: there never was one
}

// ownSocket returns nc as a socket if it is a unix socket, and takes it over. It returns nc itself
// if it is none, or if that fails. Nobody may be reading or writing.
func ownSocket(nc net.Conn) net.Conn {
	unixConn, ok := nc.(*net.UnixConn)
	if !ok {
		return nc
	}
	raw, err := unixConn.SyscallConn()
	if err != nil {
		return nc
	}
	p, err := takePoller()
	if err != nil {
		return nc // such as: no more files
	}
	s := &socket{poller: p, local: nc.LocalAddr(), remote: nc.RemoteAddr(), fd: -1}
	s.in.news, s.out.news = make(chan struct{}, 1), make(chan struct{}, 1)
	s.in.may.Store(true) // it may have come before
	err = raw.Control(func(fd uintptr) { s.fd, _ = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
	if err != nil || s.fd < 0 {
		givePollerBack()
		return nc
	}
	if err := p.add(s); err != nil {
		_ = unix.Close(s.fd) // nobody has it
		givePollerBack()
		return nc
	}
	_ = nc.Close() // the socket stays open, as fd
	return s
}

// happened is called by the poller.
func (s *socket) happened(events uint32) {
	const ended = unix.EPOLLRDHUP | unix.EPOLLHUP | unix.EPOLLERR
	if events&ended != 0 {
		s.in.over.Store(true)
	}
	if events&(unix.EPOLLIN|ended) != 0 {
		s.in.tell()
	}
	if events&(unix.EPOLLOUT|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		s.out.tell()
	}
}

func (d *direction) tell() {
	d.may.Store(true)
	d.wake()
}

func (d *direction) wake() {
	select {
	case d.news <- struct{}{}:
	default:
	}
}

// wait returns when there is news of a direction of s, or an error if there will be none.
func (s *socket) wait(d *direction) error {
	if err := s.check(); err != nil {
		d.wake() // whoever else waits
		return err
	}
	if !d.late() {
		<-d.news
	}
	if d.late() {
		d.wake()
		return os.ErrDeadlineExceeded
	}
	return nil
}

func (d *direction) late() bool {
	at := d.deadline.Load()
	return at != 0 && int64(sinceStart()) >= at
}

var start = time.Now()

// sinceStart is a clock that nobody sets, as that of timers is.
func sinceStart() time.Duration { return time.Since(start) }

// set sets the deadline. A goroutine that waits looks at it again.
func (d *direction) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
	}
	if t.IsZero() {
		d.deadline.Store(0)
		return
	}
	now, left := sinceStart(), time.Until(t)
	d.deadline.Store(max(int64(now+min(left, math.MaxInt64-now)), 1))
	d.timer = time.AfterFunc(left, d.wake)
}

// use calls f with the file descriptor, unless the socket is closed.
func (s *socket) use(f func(fd int)) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return net.ErrClosed
	}
	f(s.fd)
	return nil
}

// Read reads what has come.
func (s *socket) Read(p []byte) (n int, err error) {
	for empty := false; ; {
		if s.in.late() {
			return 0, os.ErrDeadlineExceeded
		}
		if !s.in.may.Swap(false) && (empty || !s.in.over.Load()) {
			if err := s.wait(&s.in); err != nil {
				return 0, err
			}
			continue
		}
		if used := s.use(func(fd int) { n, err = syscall.Read(fd, p) }); used != nil {
			return 0, used
		}
		switch {
		case err == unix.EINTR:
			s.in.may.Store(true)
		case err == unix.EAGAIN:
			empty = true // there will be news, whatever over says
		case err != nil:
			s.in.tell() // whoever else reads
			return 0, os.NewSyscallError("read", err)
		case n == 0 && len(p) > 0:
			s.in.tell()
			return 0, io.EOF
		default:
			if n == len(p) {
				s.in.tell() // otherwise that was all: epoll(7)
			}
			return n, nil
		}
	}
}

// Write writes all of p.
func (s *socket) Write(p []byte) (n int, err error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	for n < len(p) || len(p) == 0 {
		if s.out.late() {
			return n, os.ErrDeadlineExceeded
		}
		wrote := 0
		if used := s.use(func(fd int) { wrote, err = syscall.Write(fd, p[n:]) }); used != nil {
			return n, used
		}
		switch err {
		case nil:
			if n += wrote; len(p) == 0 {
				return 0, nil
			}
		case unix.EINTR:
		case unix.EAGAIN:
			if err := s.awaitRoom(); err != nil {
				return n, err
			}
		default:
			return n, os.NewSyscallError("write", err)
		}
	}
	return n, nil
}

// awaitRoom waits until there may be room to write.
func (s *socket) awaitRoom() (err error) {
	s.out.may.Store(false)
	watch := func(write bool) error {
		used := s.use(func(int) { err = s.poller.watch(s, write) })
		if used != nil {
			return used
		}
		return err
	}
	if err := watch(true); err != nil {
		return err
	}
	for !s.out.may.Load() {
		if err := s.wait(&s.out); err != nil {
			_ = watch(false) // it is woken at times for nothing
			return err
		}
	}
	return watch(false)
}

// check returns an error if the socket is closed.
func (s *socket) check() error { return s.use(func(int) {}) }

// Close closes the socket, and ends what is read and written.
func (s *socket) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return net.ErrClosed
	}
	s.closed = true
	s.poller.forget(s)
	err := unix.Close(s.fd)
	s.mu.Unlock()
	givePollerBack()
	for _, d := range []*direction{&s.in, &s.out} {
		d.set(time.Time{})
		d.wake()
	}
	return os.NewSyscallError("close", err)
}

// CloseWrite tells the peer that nothing more will come.
func (s *socket) CloseWrite() (err error) {
	if used := s.use(func(fd int) { err = unix.Shutdown(fd, unix.SHUT_WR) }); used != nil {
		return used
	}
	return os.NewSyscallError("shutdown", err)
}

// LocalAddr is that of [net.Conn].
func (s *socket) LocalAddr() net.Addr { return s.local }

// RemoteAddr is that of [net.Conn].
func (s *socket) RemoteAddr() net.Addr { return s.remote }

// SetDeadline is that of [net.Conn].
func (s *socket) SetDeadline(t time.Time) error {
	s.in.set(t)
	s.out.set(t)
	return s.check()
}

// SetReadDeadline is that of [net.Conn].
func (s *socket) SetReadDeadline(t time.Time) error {
	s.in.set(t)
	return s.check()
}

// SetWriteDeadline is that of [net.Conn].
func (s *socket) SetWriteDeadline(t time.Time) error {
	s.out.set(t)
	return s.check()
}

// SyscallConn is that of [syscall.Conn].
func (s *socket) SyscallConn() (syscall.RawConn, error) { return rawSocket{s}, s.check() }

// A rawSocket calls functions with a socket's file descriptor, which they must not wait for.
type rawSocket struct{ *socket }

// Control is that of [syscall.RawConn].
func (s rawSocket) Control(f func(fd uintptr)) error { return s.use(func(fd int) { f(uintptr(fd)) }) }

// Read is that of [syscall.RawConn], but that f is called once.
func (s rawSocket) Read(f func(fd uintptr) bool) error { return s.use(func(fd int) { f(uintptr(fd)) }) }

// Write is that of [syscall.RawConn], but that f is called once.
func (s rawSocket) Write(f func(fd uintptr) bool) error {
	return s.use(func(fd int) { f(uintptr(fd)) })
}
