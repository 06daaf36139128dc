package transport

import (
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// A poller waits for unix sockets, in place of Go's own, which asks the kernel of every socket when
// it can be written to as well. Of a unix socket the kernel says that anew each time the peer has
// read something: two wake-ups for nothing in a call, which take longer than the rest of it.
type poller struct {
	file  *os.File        // epoll(7)
	raw   syscall.RawConn // of file, which Go's poller waits for
	epoll int             // its descriptor

	mu      sync.RWMutex
	sockets map[int32]*socket // :: file descriptor →
}

// polling is the poller of this process. There is one while there are sockets.
var polling struct {
	mu    sync.Mutex
	now   *poller
	users int // of now
}

// takePoller returns the poller, for a socket that gives it back.
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

// givePollerBack is called once for each takePoller.
func givePollerBack() {
	polling.mu.Lock()
	defer polling.mu.Unlock()
	if polling.users--; polling.users == 0 {
		_ = polling.now.file.Close() // run returns
		polling.now = nil
	}
}

func newPoller() (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // for os.NewFile: then Go's poller waits for it
		_ = unix.Close(fd) // nobody has it
		return nil, os.NewSyscallError("fcntl", err)
	}
	f := os.NewFile(uintptr(fd), "epoll")
	raw, err := f.SyscallConn()
	if err != nil {
		_ = f.Close() // nobody has it
		return nil, err
	}
	p := &poller{file: f, raw: raw, epoll: fd, sockets: map[int32]*socket{}}
	go p.run()
	return p, nil
}

// run tells sockets what has happened to them, until the poller is closed. It is in one Read for all
// that time: Go's poller then keeps in mind what happens while run is busy.
func (p *poller) run() {
	var events [64]unix.EpollEvent
	_ = p.raw.Read(func(fd uintptr) bool { // the error says that it is closed
		for {
			n, err := unix.EpollWait(int(fd), events[:], 0)
			if err == unix.EINTR {
				continue
			}
			p.tell(events[:max(n, 0)])
			if n < len(events) {
				return false // there is no more: wait
			}
		}
	})
}

func (p *poller) tell(events []unix.EpollEvent) {
	if len(events) == 0 {
		return
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	for _, e := range events {
		// A file descriptor may be another socket's by now, which then looks for nothing.
		if s := p.sockets[e.Fd]; s != nil {
			s.happened(e.Events)
		}
	}
}

// heard is what the poller always wants to know of a socket: edges, as epoll(7) calls them.
const heard = unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET

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

// watch has the poller tell of the next time that s can be written to, if write is set.
func (p *poller) watch(s *socket, write bool) error {
	e := unix.EpollEvent{Events: heard, Fd: int32(s.fd)}
	if write {
		e.Events |= unix.EPOLLOUT
	}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(p.epoll, unix.EPOLL_CTL_MOD, s.fd, &e))
}

// forget is for a socket that is about to be closed, which takes it out of the epoll.
func (p *poller) forget(s *socket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.sockets, int32(s.fd))
}
