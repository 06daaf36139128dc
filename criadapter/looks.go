package criadapter

import (
	"context"
	"maps"
	"sync"

	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/internal/base/recovery"
)

// looks shares the lists of runtimes among all clients that want events. Without it each
// client would list a runtime that has no events every second. One client at a time lists a
// runtime; the others take its list, unless that was begun before they asked: it may be older than
// the events that they have.
type looks struct {
	panics recovery.Hook

	mu sync.Mutex
	at map[grpc.ClientConnInterface]*turns // :: runtime → the clients that look at it
}

// turns has the clients that look at a runtime. looks.mu guards begun and clients.
type turns struct {
	begun   int // how many lists were begun
	clients int

	token  chan struct{} // a lock that holds a token while a client lists; guards latest
	latest look
}

// look is one list of a runtime.
type look struct {
	number     int // counts from 1
	listed     *snapshot
	remembered bool
	err        error
}

func newLooks(panics recovery.Hook) *looks {
	return &looks{panics: panics, at: map[grpc.ClientConnInterface]*turns{}}
}

// list returns what a runtime has now, and whether some of the answer came from memory. The caller
// may change the snapshot.
func (l *looks) list(ctx context.Context, conn grpc.ClientConnInterface) (*snapshot, bool, error) {
	t, begun := l.join(conn)
	defer l.leave(conn, t)
	select {
	case t.token <- struct{}{}:
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
	defer func() { <-t.token }()
	if t.latest.number <= begun {
		one := look{number: l.begin(t)}
		one.err = l.panics.Do("looking for events", func() (err error) {
			one.listed, one.remembered, err = lookAt(ctx, conn)
			return err
		})
		if ctx.Err() != nil {
			return nil, false, ctx.Err() // this client has left: the next one lists
		}
		t.latest = one
	}
	if t.latest.err != nil {
		return nil, false, t.latest.err
	}
	s := t.latest.listed
	return &snapshot{maps.Clone(s.pods), maps.Clone(s.containers), s.order, s.asked}, t.latest.remembered, nil
}

// join adds a client. begun is how many lists were begun before.
func (l *looks) join(conn grpc.ClientConnInterface) (t *turns, begun int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at[conn] == nil {
		l.at[conn] = &turns{token: make(chan struct{}, 1)}
	}
	t = l.at[conn]
	t.clients++
	return t, t.begun
}

func (l *looks) begin(t *turns) (number int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t.begun++
	return t.begun
}

func (l *looks) leave(conn grpc.ClientConnInterface, t *turns) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.clients--; t.clients == 0 {
		delete(l.at, conn)
	}
}
