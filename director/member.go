package director

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/backend"
)

// The pauses between two attempts to open the stream of a backend. They are as long as those
// between two attempts to connect, or longer if the backend has no such stream.
const (
	minPause     = 100 * time.Millisecond
	maxPause     = 3 * time.Second
	maxLackPause = time.Minute
)

// defaultLookInterval is how often the member of a backend without a stream polls its [Resync].
const defaultLookInterval = time.Second

// A member is one backend's part in an endless stream of a client. Its run, in a goroutine of its own, keeps the backend's stream
// open, and has the Resync make the messages that the client misses while it is not:
//
//	the backend's stream    what run does                                     it goes on when
//	is not open             waits for retry, and polls the Resync             retry fires: it opens the stream
//	is opening              polls the Resync                                  the stream is open, or has ended
//	is open                 polls the Resync once more, and then only waits   the stream ends, or the backend moves
//
// While the stream is open, a second goroutine receives its messages and forwards them. Only one of the two uses the Resync at
// a time, which sending sees to: the Resync must know what the client has got, in the order in which the client got it.
//
// A member outlives the backend's connections, and each reload that keeps the backend. at says which table it uses.
type member struct {
	s      *endless
	ctx    context.Context // ends with the call, or when the backend is taken away
	leave  context.CancelFunc
	at     atomic.Pointer[place]
	placed chan struct{} // holds a token when the member has got another place
	moved  chan struct{} // holds a token when the backend has got another connection
	after  *member       // the previous member of this backend, which was taken away and sends its end first; or nil
	ended  chan struct{} // closed when this member sends nothing more

	sending chan struct{} // a lock that holds a token while the member sends the client messages; guards the fields below
	resync  Resync        // nil: messages that the stream missed are lost
	begun   bool          // the Resync's Begin has been called, or is not needed
}

// A place is the place of a backend in a table. It is immutable; a reload gives its member another one. The table of a place may
// be older than the director's for a moment, so what a member asks of the backend it asks by its place, and never by an index
// that it has kept.
type place struct {
	table   *table
	method  *method
	backend int
}

func (p *place) link() link { return p.table.links[p.backend] }

// newMember returns a member. It has the Resync report everything that the backend has as new to a
// client whose stream is already open, or whose stream comes from a single backend.
func newMember(s *endless, at *place, late bool, after *member) *member {
	m := &member{s: s, placed: make(chan struct{}, 1), moved: make(chan struct{}, 1), sending: make(chan struct{}, 1), ended: make(chan struct{}), after: after, begun: late || s.single.Load()}
	if at.method.resync != nil {
		m.resync = at.method.resync()
	}
	m.ctx, m.leave = context.WithCancel(s.ctx)
	m.at.Store(at)
	return m
}

// move gives the member the place of its backend after a reload.
func (m *member) move(at *place) {
	before := m.at.Swap(at)
	signal(m.placed)
	if before.link() != at.link() {
		signal(m.moved)
	}
}

// signal puts a token into a channel that has room for one, unless it holds one already.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// endsAll ends the call in the way in which the stream of the member has ended, if the stream of a single backend passes
// as it is. It reports whether it did. A reload may be what ended the stream, and it may add backends: endsAll waits until
// the member has its place after the reload.
func (m *member) endsAll(e ending) bool {
	for m.s.single.Load() {
		select {
		case <-m.at.Load().table.replaced:
		default:
			m.s.end(e.err, e.trailer)
			return true
		}
		select {
		case <-m.placed:
		case <-m.ctx.Done():
			return false
		}
	}
	return false
}

// run keeps the stream of the backend open, and sends the client what it missed. It returns when ctx has ended: the client
// has left, or a reload has taken the backend away.
func (m *member) run() error {
	defer close(m.ended)
	defer m.leave()
	if m.after != nil {
		select {
		case <-m.after.ended:
			m.after = nil
		case <-m.ctx.Done(): // this member has sent nothing
			<-m.after.ended
			return nil
		}
	}
	var stream opening
	var since time.Time // when stream was opened; zero: it is not open
	polled := false     // the member has polled the Resync at least once
	pause := minPause
	retry, poll := time.NewTimer(0), time.NewTimer(0)
	defer retry.Stop()
	defer poll.Stop()
	if m.resync == nil || m.s.single.Load() {
		poll.Stop()
	}
	pollAgain := func() {
		if m.resync != nil && !m.s.single.Load() {
			poll.Reset(m.at.Load().table.lookInterval)
		}
	}
	for {
		select {
		case <-retry.C:
			stream = m.open()
		case <-stream.opened:
			since = time.Now()
			if polled {
				pollAgain() // once more, when the subscription must have taken effect
			}
		case e := <-stream.ended:
			stream.stop()
			if m.endsAll(e) {
				return nil
			}
			if !since.IsZero() && time.Since(since) > maxPause {
				pause = minPause
			}
			longest := maxPause
			if e.lacks() {
				longest = maxLackPause
			}
			pause = min(pause, longest)
			retry.Reset(pause + rand.N(pause/5))
			pause = pause * 8 / 5
			stream, since = opening{}, time.Time{}
			pollAgain()
		case <-poll.C:
			polled = true
			began := time.Now()
			if err := m.sendMissed(); err != nil || since.IsZero() || began.Sub(since) < m.at.Load().table.lookInterval {
				pollAgain()
			}
		case <-m.moved:
			stream.end()
			stream, since, pause = opening{}, time.Time{}, minPause
			retry.Reset(0)
			pollAgain()
		case <-m.ctx.Done():
			stream.end()
			return m.sendEnd()
		}
	}
}

// An opening is a stream of the backend, from the attempt to open it until it has ended. A goroutine of its own sends the tokens,
// which run receives.
type opening struct {
	stop   context.CancelFunc // nil: there is no stream
	opened chan struct{}      // gets one token
	ended  chan ending        // gets one ending, last of all
}

// ending says how a stream has ended. An end without any message may mean that the backend has no such stream (see
// lacks): the pauses before the next attempts then grow longer than those after the end of a connection.
type ending struct {
	err     error
	trailer metadata.MD
	some    bool // the stream had a message
}

// lacks reports whether the backend has no such stream. CRI-O then ends the stream at once.
func (e ending) lacks() bool {
	return backend.Lacks(e.err) || errors.Is(e.err, io.EOF) && !e.some
}

// end ends the stream if there is one.
func (o opening) end() {
	if o.stop != nil {
		o.stop()
		<-o.ended
	}
}

// open begins to open the stream of the backend, and returns at once.
func (m *member) open() opening {
	ctx, cancel := context.WithCancel(m.ctx)
	o := opening{cancel, make(chan struct{}, 1), make(chan ending, 1)}
	go func() {
		var e ending
		e.err = m.at.Load().table.panics.Do(m.s.name, func() error { return m.receive(ctx, o, &e) })
		o.ended <- e
	}()
	return o
}

// receive passes on the messages of the backend's stream until the stream ends.
func (m *member) receive(ctx context.Context, o opening, e *ending) error {
	at, single := m.at.Load(), m.s.single.Load()
	asItIs := func(_ *method, _ int, f *codec.Frame) (*codec.Frame, error) { return f, nil } // see pass
	s, err := at.table.single(ctx, at.method, at.backend, m.s.request, asItIs)
	if err != nil {
		return err
	}
	o.opened <- struct{}{}
	if single {
		if md, err := s.Header(); err == nil && len(md) > 0 {
			m.s.head(md)
		}
	}
	for {
		f, err := s.Recv()
		if err != nil {
			e.trailer = s.Trailer()
			return err
		}
		m.s.head(nil) // messages may come without a header
		e.some = true
		if err := m.forward(f); err != nil {
			return err
		}
	}
}

// forward passes on a message of the stream, after the resync has seen it.
func (m *member) forward(f *codec.Frame) error {
	if m.resync == nil || m.s.single.Load() {
		return m.pass(m.ctx, f)
	}
	m.sending <- struct{}{}
	defer func() { <-m.sending }()
	if err := m.resync.Saw(f); err != nil {
		return err
	}
	return m.pass(m.ctx, f)
}

// sendMissed sends the client what the stream has missed.
func (m *member) sendMissed() error {
	m.sending <- struct{}{}
	defer func() { <-m.sending }()
	conn := m.at.Load().link().conn
	if !m.begun {
		m.begun = true // even if Begin fails: then everything is new to the client, and nothing is missed
		return m.resync.Begin(m.ctx, conn)
	}
	messages, err := m.resync.Look(m.ctx, conn)
	for _, f := range messages {
		if err := m.pass(m.ctx, f); err != nil {
			return err
		}
	}
	return err
}

// sendEnd sends the client messages that end everything that the backend had, if a reload has
// taken the backend away.
func (m *member) sendEnd() error {
	if m.resync == nil || m.s.ctx.Err() != nil {
		return nil
	}
	m.sending <- struct{}{}
	defer func() { <-m.sending }()
	for _, f := range m.resync.End() {
		if m.pass(m.s.ctx, f) != nil {
			return nil // the client has left
		}
	}
	return nil
}

// pass hands a message to the client, with front names, unless ctx ends.
func (m *member) pass(ctx context.Context, f *codec.Frame) error {
	at := m.at.Load()
	f, err := at.table.toFront(at.method, at.backend, f)
	if err != nil {
		return err
	}
	return m.s.pass(ctx, f)
}
