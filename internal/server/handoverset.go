package server

import (
	"context"
	"encoding/gob"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/inventory"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// This file passes on what a process knows to its successor, and takes it over from its predecessor: the backends, what calls
// have changed that ended after the backends were passed on, the evidence, and what the old process still records.
//
// On the connection between the two, the successor first writes a byte, the version that it knows. The predecessor answers with
// a gob of all backends, and then with gobs of notes. The successor answers each note with a byte once it has taken it in. Only
// then does the client whose call it is about get its answer, unless the successor takes too long. So no client asks the
// successor about something that the successor does not know yet.

// backendsTime bounds how long a process may take to pass on its backends after the successor has
// asked for them.
const backendsTime = 30 * time.Second

// socketPair returns the two ends of a connection between this process and its successor.
func socketPair() (ours net.Conn, theirs *os.File, err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	file := os.NewFile(uintptr(fds[0]), "backends")
	defer file.Close() // ours has its own descriptor
	theirs = os.NewFile(uintptr(fds[1]), "backends")
	if ours, err = net.FileConn(file); err != nil {
		_ = theirs.Close() // it is unused
	}
	return ours, theirs, err
}

// newSuccessor serves the successor at a connection until it leaves. It sends the backends
// when the successor asks for them, as late as possible, and the evidence of now. After that it
// sends a note of each call that began in this process and ends later, because its client may then
// ask the successor about the result, and what this process still records.
func (p *Proxy) newSuccessor(conn net.Conn) *successor {
	h := &successor{conn: conn, gob: gob.NewEncoder(conn), done: make(chan struct{})}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	evidence, rest := p.encodeEvidence() // now, because with all recorded calls it would delay the backends too long
	go func() {
		defer close(h.done)
		asked := make([]byte, 1)
		if _, err := conn.Read(asked); err != nil {
			return // the successor has ended
		}
		h.giveBackends(p, evidence, asked[0])
		if rest != nil && !h.passOn(rest) && h.ctx.Err() == nil {
			klog.InfoS("The new process does not record the calls that this one still serves", p.underWay()...)
		}
	}()
	return h
}

// The successor asks with the latest version that it knows. The process before answers in the latest that both know, and says
// which that is. Within a version keys and fields are only added, and those who do not know them ignore them.
const (
	handoverVersion = 2          // that of 1.0.0
	versionKey      = ":version" // among the backends, as evidenceKey
)

// successor is the process that takes over, as the process that hands over sees it. It is safe for concurrent use: any call
// that ends may send it a note. One goroutine passes on what is recorded, until the successor has all of it.
type successor struct {
	mu      sync.Mutex // guards the connection, and the fields up to ended; held until the successor has answered a note
	conn    net.Conn
	gob     *gob.Encoder
	follows bool // it has answered a note: until then it may still be starting
	ended   bool

	ctx    context.Context // ends when the successor gets no more
	cancel context.CancelFunc
	done   chan struct{} // closed when the successor has all that was recorded
}

// leave ends the notes: this process goes on.
func (h *successor) leave() {
	h.cancel()
	_ = h.conn.Close() // ends the goroutine, and with the next note also the notes
	<-h.done
}

// finish returns when the successor has all that was recorded, or does not take it. The recorder must be closed.
func (h *successor) finish() {
	select {
	case <-h.done:
	case <-time.After(successorTime):
	}
	_ = h.conn.Close() // nothing more follows
	<-h.done
}

// giveBackends sends the backends to a successor that knows a version, and has the backends send notes from then on. The notes
// begin before the backends are encoded, so a change may be in both, but never in neither.
func (h *successor) giveBackends(p *Proxy, evidence []byte, version byte) {
	h.mu.Lock()
	defer h.mu.Unlock() // notes come after the backends
	p.set.HandOn(func(backend string, n inventory.Note) { h.send(&successorNote{Backend: backend, Note: n}) })
	all, err := p.set.Encode()
	if err == nil {
		all[evidenceKey], all[versionKey] = evidence, []byte{min(version, handoverVersion)}
		_ = h.conn.SetDeadline(time.Now().Add(backendsTime))
		p.unlock() // the successor takes the folder as soon as it has the backends
		err = h.gob.Encode(all)
	}
	if err != nil {
		klog.ErrorS(err, "The new process does not get the caches of the backends")
		h.end()
	}
}

// passOn sends what this process still records, until its recorder is closed. It reports whether the successor has all of it.
func (h *successor) passOn(rest *capture.Follower) bool {
	const most, mostBytes = 256, 1 << 20 // at once
	for {
		var n successorNote
		var ev capture.Event
		n.Last = rest.Next(h.ctx, &ev) != nil
		for more, bytes := !n.Last, 0; more; more = len(n.Events) < most && bytes < mostBytes && rest.TryNext(&ev) {
			n.Events, bytes = append(n.Events, ev), bytes+len(ev.Payload)
		}
		if !h.send(&n) || n.Last {
			return n.Last && h.ctx.Err() == nil
		}
	}
}

// successorNote is a note for the successor. There are three kinds, which these fields distinguish:
//
//	fields         what the note says
//	Backend, Note  what a call has changed at a backend
//	Events, Last   what this process has recorded since the snapshot
//	Keeps, Calls   for which calls this process stays
type successorNote struct {
	Backend string
	Note    inventory.Note
	Events  []capture.Event // if there are any, or if Last is set, there is no Note
	Last    bool            // no more events follow

	Keeps bool // Calls are all for which this process stays, and nothing else is set
	Calls []admin.LongCall
}

// successorTime bounds how long the end of a call waits until a successor that follows has its note.
const successorTime = 5 * time.Second

// send returns when the successor has got a note. A successor that does not answer in time gets no more notes, and send returns
// false. A successor that is still starting has the time that it may take for its backends.
func (h *successor) send(n *successorNote) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		return false
	}
	bound := successorTime
	if !h.follows {
		bound = backendsTime
	}
	_ = h.conn.SetDeadline(time.Now().Add(bound))
	err := h.gob.Encode(n)
	if err == nil {
		_, err = h.conn.Read(make([]byte, 1))
	}
	h.follows = err == nil
	if !h.follows { // the successor has ended
		h.end()
	}
	return h.follows
}

// end ends the notes. h.mu is held.
func (h *successor) end() {
	h.ended = true
	_ = h.conn.Close() // no more notes follow
}

// Predecessor is the process that hands over, as the process that takes over sees it: the backends that it has passed on, and the
// connection on which its notes come. It is nil if there is no such process, and its methods then do nothing.
//
// The goroutine of follow reads the connection, and is the only one that does; it ends when the connection is closed, by
// either process. What New needs is read before, and does not change.
type Predecessor struct {
	all   map[string][]byte // :: name of a backend → the encoded backend
	conn  net.Conn          // notes come from it
	gob   *gob.Decoder
	ended chan struct{} // closed when no more notes come

	passage *capture.Passage // of what that process still records; nil if it does not pass that on

	mu    sync.Mutex
	keeps []admin.LongCall // for which that process stays
}

// ReceivePredecessor reads the backends of the process that hands over from a socket. It returns nil
// if from is nil. After an error this process must not serve: without the backends, a runtime that
// is gone would have no pods, and kubelet would start them a second time. The other process then
// goes on.
func ReceivePredecessor(from *os.File) (*Predecessor, error) {
	if from == nil {
		return nil, nil
	}
	defer from.Close() // conn has its own descriptor
	conn, err := net.FileConn(from)
	if err != nil {
		return nil, takeoverError(err)
	}
	return ReadPredecessor(conn)
}

// ReadPredecessor is ReceivePredecessor for a connection to the other process, which it closes in the end.
func ReadPredecessor(conn net.Conn) (_ *Predecessor, err error) {
	l := &Predecessor{ended: make(chan struct{}), conn: conn, gob: gob.NewDecoder(conn)}
	_ = conn.SetDeadline(time.Now().Add(backendsTime))
	if _, err = conn.Write([]byte{handoverVersion}); err == nil {
		err = l.gob.Decode(&l.all)
	}
	if v := l.all[versionKey]; err == nil && len(v) == 1 && v[0] > handoverVersion {
		err = fmt.Errorf("it is a newer criproxy, which passes them on in version %d, and this one reads only versions up to %d; restart criproxy instead", v[0], handoverVersion)
	}
	if err != nil {
		_ = conn.Close() // the other process notices that
		return nil, takeoverError(err)
	}
	_ = conn.SetDeadline(time.Time{})
	return l, nil
}

// takeoverError is why this process must not serve.
func takeoverError(err error) error {
	return fmt.Errorf("taking over the backends of the previous process, which goes on: %w", err)
}

// follow takes in the notes of the previous process, until that process ends or l is closed: what calls have changed at a
// backend, for which calls it stays, and what it records. Each is answered once it is taken in. In the end, if not all that was
// recorded has come, the calls whose ends are missing are marked so.
func (l *Predecessor) follow(s *Set) {
	if l == nil {
		return
	}
	defer close(l.ended)
	all := false // that it records has come
	for {
		var n successorNote
		if l.gob.Decode(&n) != nil {
			break // the previous process has ended
		}
		switch {
		case n.Keeps:
			l.keep(n.Calls)
		case n.Last || len(n.Events) > 0:
			if l.passage == nil {
				break // this process records nothing
			}
			for i := range n.Events {
				l.passage.Add(&n.Events[i])
			}
			all = all || n.Last
		default:
			if err := s.Learn(n.Backend, n.Note); err != nil {
				klog.ErrorS(err, "What a call of the previous process changed is not in the cache before the next list of the backend", "backend", n.Backend, "method", n.Note.Method)
			}
		}
		if _, err := l.conn.Write([]byte{1}); err != nil {
			break
		}
	}
	l.keep(nil)
	switch {
	case l.passage == nil:
	case all:
		l.passage.End()
	default:
		methods := l.passage.Break()
		klog.InfoS("The previous process ended before it had passed on all that it recorded: the recording may lack the ends of these calls", "calls", len(methods), "methods", slices.Compact(methods))
	}
}

// keep notes for which calls the previous process stays: those, and no others.
func (l *Predecessor) keep(all []admin.LongCall) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keeps = all
}

// calls returns the calls for which the previous process stays.
func (l *Predecessor) calls() []admin.LongCall {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.keeps)
}

// await returns when the previous process has ended, when ctx ends, or after bound, unless that process stays longer for a
// call.
func (l *Predecessor) await(ctx context.Context, bound time.Duration) {
	if l != nil {
		await(ctx, l.ended, bound, func() time.Duration { return left(l.calls()) })
	}
}

// leave ends follow, which must have begun. What the previous process records from now on is missing, and the recording
// says so while it can still be written.
func (l *Predecessor) leave() {
	if l != nil {
		l.close()
		<-l.ended
	}
}

// close ends the notes. The previous process notices that, and its calls do not wait for this one any more.
func (l *Predecessor) close() {
	if l != nil {
		_ = l.conn.Close() // ends follow
	}
}

// backends returns each encoded backend, by its name. The keys that begin with a colon are no backends: see evidenceKey.
func (l *Predecessor) backends() map[string][]byte {
	if l == nil {
		return nil
	}
	return l.all
}
