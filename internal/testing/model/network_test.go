package model

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// socketBuffer is how many bytes a connection holds in one direction, as a unix socket does by default.
const socketBuffer = 208 << 10

// A link is a connection in memory. Reads, writes and deadlines are those of a unix socket.
type link struct {
	mu      sync.Mutex
	changed *sync.Cond
	ways    [2]way // bytes for end 0, and for end 1
	ends    [2]end
	stalled bool  // no byte arrives at either end
	cut     error // why nothing can be read or written any more

	process int   // of criproxy at one end; zero: none has accepted the connection yet
	wire    *wire // of a connection to a runtime
}

// way is one direction of a link.
type way struct {
	data   []byte
	ended  bool // its writer has closed it
	left   int  // how many bytes may pass before the link is cut, or stalls; negative: any number
	stalls bool // it stalls then
}

// end is one end of a link: a net.Conn.
type end struct {
	*link
	at     int
	closed bool
	bounds [2]bound // of reading, of writing
}

// bound is a deadline.
type bound struct {
	at    time.Time
	timer *time.Timer
}

func newLink() *link {
	l := &link{}
	l.changed = sync.NewCond(&l.mu)
	for i := range l.ends {
		l.ways[i].left = -1
		l.ends[i].link, l.ends[i].at = l, i
	}
	return l
}

// address is the address of an end; it leads to its link.
type address struct{ *link }

func (address) Network() string { return "unix" }
func (address) String() string  { return "@" }

func (e *end) LocalAddr() net.Addr  { return address{e.link} }
func (e *end) RemoteAddr() net.Addr { return address{e.link} }

// wait waits for a change, or returns why there is nothing to wait for.
func (e *end) wait(b *bound) error {
	switch {
	case e.closed:
		return net.ErrClosed
	case e.cut != nil:
		return e.cut
	case !b.at.IsZero() && !time.Now().Before(b.at):
		return os.ErrDeadlineExceeded
	}
	e.changed.Wait()
	return nil
}

func (e *end) Read(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	w := &e.ways[e.at]
	for {
		if len(w.data) > 0 && !e.stalled && !e.closed {
			n := copy(p, w.data)
			w.data = w.data[n:]
			e.changed.Broadcast()
			return n, nil
		}
		if w.ended && len(w.data) == 0 && !e.stalled && !e.closed && e.cut == nil {
			return 0, io.EOF
		}
		if err := e.wait(&e.bounds[0]); err != nil {
			return 0, err
		}
	}
}

func (e *end) Write(p []byte) (n int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	w := &e.ways[1-e.at]
	for len(p) > 0 {
		switch room := socketBuffer - len(w.data); {
		case e.closed:
			return n, net.ErrClosed
		case e.cut != nil:
			return n, e.cut
		case e.ends[1-e.at].closed:
			return n, syscall.EPIPE
		case room <= 0:
			if err := e.wait(&e.bounds[1]); err != nil {
				return n, err
			}
		default:
			some := p[:min(room, len(p))]
			if w.left >= 0 && w.left <= len(some) {
				stalls := w.stalls
				w.data = append(w.data, some[:w.left]...)
				n, p, w.left = n+w.left, p[w.left:], -1
				if stalls {
					e.stalled = true
					continue
				}
				e.breaks()
				return n, e.cut
			}
			if w.left >= 0 {
				w.left -= len(some)
			}
			w.data = append(w.data, some...)
			n, p = n+len(some), p[len(some):]
			e.changed.Broadcast()
		}
	}
	return n, nil
}

func (e *end) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return net.ErrClosed
	}
	e.closed, e.ways[1-e.at].ended = true, true
	e.changed.Broadcast()
	return nil
}

func (e *end) CloseWrite() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ways[1-e.at].ended = true
	e.changed.Broadcast()
	return nil
}

func (e *end) SetReadDeadline(t time.Time) error  { return e.deadline(t, 0) }
func (e *end) SetWriteDeadline(t time.Time) error { return e.deadline(t, 1) }
func (e *end) SetDeadline(t time.Time) error      { return e.deadline(t, 0, 1) }

func (e *end) deadline(t time.Time, which ...int) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return net.ErrClosed
	}
	for _, i := range which {
		b := &e.bounds[i]
		if b.timer != nil {
			b.timer.Stop()
		}
		if b.at = t; !t.IsZero() {
			b.timer = time.AfterFunc(time.Until(t), func() {
				e.mu.Lock()
				defer e.mu.Unlock()
				e.changed.Broadcast()
			})
		}
	}
	e.changed.Broadcast()
	return nil
}

// breaks cuts the link; mu is held. What has arrived can still be read.
func (l *link) breaks() {
	if l.cut == nil {
		l.cut = syscall.ECONNRESET
		l.changed.Broadcast()
	}
}

func (l *link) broken() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cut != nil
}

// breakNow cuts the link.
func (l *link) breakNow() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.breaks()
}

// limit cuts the link after a number of bytes in one direction, or stalls it.
func (l *link) limit(bytes int, stalls bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := &l.ways[bytes%2]
	w.left, w.stalls = bytes, stalls
}

// pending reports whether the link is to be cut.
func (l *link) pending() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ways[0].left >= 0 || l.ways[1].left >= 0
}

// stall stops the bytes of a link, or lets them pass again.
func (l *link) stall(stalled bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stalled = stalled
	if !stalled {
		l.ways[0].left, l.ways[1].left = -1, -1
	}
	l.changed.Broadcast()
}

// A front is the socket of criproxy. Processes that listen at it share it, as after a handover.
type front struct {
	mu      sync.Mutex
	changed *sync.Cond
	waiting []*end
	open    int // processes that listen
}

func newFront() *front {
	f := &front{}
	f.changed = sync.NewCond(&f.mu)
	return f
}

// dial connects a client.
func (f *front) dial(ctx context.Context) (net.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open == 0 {
		return nil, syscall.ECONNREFUSED
	}
	l := newLink()
	f.waiting = append(f.waiting, &l.ends[1])
	f.changed.Signal()
	return &l.ends[0], nil
}

// listener is one process's hold of a front.
type listener struct {
	*front
	process *proxy
	closed  bool
}

func (f *front) listen(p *proxy) *listener {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open++
	return &listener{front: f, process: p}
}

func (l *listener) Accept() (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.closed {
		if len(l.waiting) > 0 {
			e := l.waiting[0]
			l.waiting = l.waiting[1:]
			e.process = l.process.number
			l.process.links = append(l.process.links, e.link)
			return e, nil
		}
		l.changed.Wait()
	}
	return nil, net.ErrClosed
}

func (l *listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return net.ErrClosed
	}
	l.closed = true
	if l.open--; l.open == 0 {
		for _, e := range l.waiting {
			e.breakNow()
		}
		l.waiting = nil
	}
	l.changed.Broadcast()
	return nil
}

func (l *listener) Addr() net.Addr { return address{} }
