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
// [syscall.Conn]. Several goroutines may use it at once. It owns its file descriptor, which Close closes when no goroutine
// uses it: the number may belong to another file from then on.
type socket struct {
	poller        *poller
	local, remote net.Addr

	mu     sync.RWMutex // read-locked while fd is in use
	fd     int
	closed bool

	long    atomic.Bool // the last read has filled its buffer: a long message, see nowait_linux.go
	writing sync.Mutex  // held by Write: one at a time, as for Go's connections
	in, out direction
}

// A direction is one half of a socket. The poller reports each event once: it is edge-triggered. So no event may be lost between
// a system call that finds nothing to do and the wait that follows. A reader clears may before it reads, and waits only if
// may is still clear afterwards; an event sets may before it wakes the goroutine that waits. over needs no event: at the end
// of a half each read returns at once.
type direction struct {
	news     chan struct{} // wakes the goroutine that waits; has room for one
	may      atomic.Bool   // there may be something to read, or room to write
	over     atomic.Bool   // the peer has ended this half: no more events will come
	deadline atomic.Int64  // in terms of sinceStart; 0: there is none

	mu    sync.Mutex
	timer *time.Timer // for deadline; nil: there never was one
}

// ownSocket returns nc as a socket, and takes it over, if nc is a unix socket. If it is not, or if
// this fails, ownSocket returns nc itself. No goroutine may be reading or writing.
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
		return nc // such as EMFILE
	}
	s := &socket{poller: p, local: nc.LocalAddr(), remote: nc.RemoteAddr(), fd: -1}
	s.in.news, s.out.news = make(chan struct{}, 1), make(chan struct{}, 1)
	s.in.may.Store(true) // input may have arrived before the poller watches
	err = raw.Control(func(fd uintptr) { s.fd, _ = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
	if err != nil || s.fd < 0 {
		givePollerBack()
		return nc
	}
	if err := p.add(s); err != nil {
		_ = unix.Close(s.fd) // not in use yet
		givePollerBack()
		return nc
	}
	_ = nc.Close() // the socket stays open, as fd
	return s
}

// happened notes events. The poller calls it.
func (s *socket) happened(events uint32) {
	const ended = unix.EPOLLRDHUP | unix.EPOLLHUP | unix.EPOLLERR
	if events&ended != 0 {
		s.in.over.Store(true)
	}
	if events&(unix.EPOLLIN|ended) != 0 {
		s.in.ready()
	}
	if events&(unix.EPOLLOUT|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		s.out.ready()
	}
}

// ready notes that a system call may succeed.
func (d *direction) ready() {
	d.may.Store(true)
	d.wake()
}

// wake wakes the goroutine that waits, or the next one that does. A token too many makes it check again for nothing.
func (d *direction) wake() { signal(d.news) }

// wait waits for news of a direction of s. It returns an error if s is closed or the deadline has
// passed.
func (s *socket) wait(d *direction) error {
	if err := s.check(); err != nil {
		d.wake() // another goroutine may wait too
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

// late reports whether the deadline has passed.
func (d *direction) late() bool {
	at := d.deadline.Load()
	return at != 0 && int64(sinceStart()) >= at
}

var start = time.Now()

// sinceStart is a monotonic clock.
func sinceStart() time.Duration { return time.Since(start) }

// set sets the deadline; zero means none. When the deadline passes, set wakes the goroutine that
// waits.
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

// Read implements [net.Conn].
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
		read := readNow
		if s.long.Load() {
			read = syscall.Read
		}
		if used := s.use(func(fd int) { n, err = read(fd, p) }); used != nil {
			return 0, used
		}
		switch {
		case err == unix.EINTR:
			s.in.may.Store(true)
		case err == unix.EAGAIN:
			empty = true // an event will follow, whatever over says
		case err != nil:
			s.in.ready() // another goroutine may read too
			return 0, os.NewSyscallError("read", err)
		case n == 0 && len(p) > 0:
			s.in.ready()
			return 0, io.EOF
		default:
			s.long.Store(n == len(p))
			if n == len(p) {
				s.in.ready() // a shorter read has emptied the socket: epoll(7)
			}
			return n, nil
		}
	}
}

// Write implements [net.Conn].
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
			_ = watch(false) // if it fails, s is sometimes woken for nothing
			return err
		}
	}
	return watch(false)
}

// check returns an error if the socket is closed.
func (s *socket) check() error { return s.use(func(int) {}) }

// Close closes the socket. Reads and writes that wait return net.ErrClosed.
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

// CloseWrite says to the peer that nothing more will come.
func (s *socket) CloseWrite() (err error) {
	if used := s.use(func(fd int) { err = unix.Shutdown(fd, unix.SHUT_WR) }); used != nil {
		return used
	}
	return os.NewSyscallError("shutdown", err)
}

// LocalAddr implements [net.Conn].
func (s *socket) LocalAddr() net.Addr { return s.local }

// RemoteAddr implements [net.Conn].
func (s *socket) RemoteAddr() net.Addr { return s.remote }

// SetDeadline implements [net.Conn].
func (s *socket) SetDeadline(t time.Time) error {
	s.in.set(t)
	s.out.set(t)
	return s.check()
}

// SetReadDeadline implements [net.Conn].
func (s *socket) SetReadDeadline(t time.Time) error {
	s.in.set(t)
	return s.check()
}

// SetWriteDeadline implements [net.Conn].
func (s *socket) SetWriteDeadline(t time.Time) error {
	s.out.set(t)
	return s.check()
}

// SyscallConn implements [syscall.Conn].
func (s *socket) SyscallConn() (syscall.RawConn, error) { return rawSocket{s}, s.check() }

// A rawSocket calls functions with a socket's file descriptor. They must not block.
type rawSocket struct{ *socket }

// Control implements [syscall.RawConn].
func (s rawSocket) Control(f func(fd uintptr)) error { return s.use(func(fd int) { f(uintptr(fd)) }) }

// Read implements [syscall.RawConn], but calls f only once and does not wait.
func (s rawSocket) Read(f func(fd uintptr) bool) error { return s.use(func(fd int) { f(uintptr(fd)) }) }

// Write implements [syscall.RawConn], but calls f only once and does not wait.
func (s rawSocket) Write(f func(fd uintptr) bool) error {
	return s.use(func(fd int) { f(uintptr(fd)) })
}
