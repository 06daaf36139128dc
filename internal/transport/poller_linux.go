package transport

import (
	"os"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A poller waits for unix sockets, in place of Go's own poller. Go's poller always asks the kernel
// when a socket becomes writable. For a unix socket, the kernel reports that each time the peer has
// read something: two useless wake-ups in each call, which take longer than the rest of the call.
//
// A poller is an epoll descriptor, and one goroutine that reads its events. Go's poller waits for that descriptor, so the
// goroutine takes no thread while nothing happens.
type poller struct {
	file  *os.File        // epoll(7)
	raw   syscall.RawConn // of file; Go's poller waits for it
	epoll int             // descriptor of file

	mu      sync.RWMutex
	sockets map[int32]*socket // :: file descriptor →
}

// polling is the poller of this process. It exists while there are sockets.
var polling struct {
	mu    sync.Mutex
	now   *poller
	users int // sockets that use now
}

// takePoller returns the poller of this process. The socket that takes it must call givePollerBack.
func takePoller() (*poller, error) {
	polling.mu.Lock()
	defer polling.mu.Unlock()
	if polling.now == nil {
		p, err := newPoller()
		if err != nil {
			return nil, err
		}
		polling.now = p
	}
	polling.users++
	return polling.now, nil
}

// givePollerBack undoes one takePoller. It closes the poller that no socket uses any more.
func givePollerBack() {
	polling.mu.Lock()
	defer polling.mu.Unlock()
	if polling.users--; polling.users == 0 {
		_ = polling.now.file.Close() // run returns
		polling.now = nil
	}
}

// newPoller makes a poller, and starts its goroutine, which ends when the file is closed.
func newPoller() (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // so that os.NewFile hands it to Go's poller
		_ = unix.Close(fd) // not in use yet
		return nil, os.NewSyscallError("fcntl", err)
	}
	f := os.NewFile(uintptr(fd), "epoll")
	raw, err := f.SyscallConn()
	if err != nil {
		_ = f.Close() // not in use yet
		return nil, err
	}
	p := &poller{file: f, raw: raw, epoll: fd, sockets: map[int32]*socket{}}
	go p.run()
	return p, nil
}

// run notifies sockets of their events until the poller is closed. All that time it is within one
// Read, so that Go's poller remembers events that happen while run is busy.
func (p *poller) run() {
	var events [64]unix.EpollEvent
	_ = p.raw.Read(func(fd uintptr) bool { // returns an error when the poller is closed
		for {
			n, err := pollNow(int(fd), events[:])
			if err == unix.EINTR {
				continue
			}
			p.wake(events[:max(n, 0)])
			if n < len(events) {
				return false // no more events: wait
			}
		}
	})
}

// pollNow returns events without waiting. It leaves Go's scheduler out: see nowait_linux.go.
func pollNow(epoll int, events []unix.EpollEvent) (int, error) {
	n, _, errno := syscall.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(epoll), uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), 0, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// wake passes events to their sockets.
func (p *poller) wake(events []unix.EpollEvent) {
	if len(events) == 0 {
		return
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	for _, e := range events {
		// The descriptor may belong to another socket by now, which is then woken for nothing.
		if s := p.sockets[e.Fd]; s != nil {
			s.happened(e.Events)
		}
	}
}

// heard are the events that the poller always waits for, edge-triggered: epoll(7).
const heard = unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET

// add makes the poller wait for input of s.
func (p *poller) add(s *socket) error {
	p.mu.Lock()
	p.sockets[int32(s.fd)] = s
	p.mu.Unlock()
	err := unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, s.fd, &unix.EpollEvent{Events: heard, Fd: int32(s.fd)})
	if err != nil {
		p.forget(s)
	}
	return os.NewSyscallError("epoll_ctl", err)
}

// watch makes the poller wait until s is writable, too, if write is set.
func (p *poller) watch(s *socket, write bool) error {
	e := unix.EpollEvent{Events: heard, Fd: int32(s.fd)}
	if write {
		e.Events |= unix.EPOLLOUT
	}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(p.epoll, unix.EPOLL_CTL_MOD, s.fd, &e))
}

// forget removes a socket that is about to be closed. Closing it removes it from the epoll set.
func (p *poller) forget(s *socket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.sockets, int32(s.fd))
}
