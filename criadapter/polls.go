package criadapter

import (
	"context"
	"maps"
	"sync"

	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/internal/base/recovery"
)

// polls shares the lists of runtimes among all clients that want events. Without it each
// client would list a runtime that has no events every second. One client at a time lists a
// runtime; the others take its list, unless that was begun before they asked: it may be older than
// the events that they have.
type polls struct {
	panics recovery.Hook

	mu sync.Mutex
	at map[grpc.ClientConnInterface]*turns // :: runtime → the clients that poll it
}

// turns has the clients that poll a runtime. polls.mu guards begun and clients.
type turns struct {
	begun   int // how many lists were begun
	clients int

	token  chan struct{} // a lock that holds a token while a client lists; guards latest
	latest poll
}

// poll is one list of a runtime.
type poll struct {
	number     int // counts from 1
	listed     *snapshot
	remembered bool
	err        error
}

func newPolls(panics recovery.Hook) *polls {
	return &polls{panics: panics, at: map[grpc.ClientConnInterface]*turns{}}
}

// list returns what a runtime has now, and whether some of the answer came from memory. The caller
// may change the snapshot.
func (p *polls) list(ctx context.Context, conn grpc.ClientConnInterface) (*snapshot, bool, error) {
	t, begun := p.join(conn)
	defer p.leave(conn, t)
	select {
	case t.token <- struct{}{}:
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
	defer func() { <-t.token }()
	if t.latest.number <= begun {
		one := poll{number: p.begin(t)}
		one.err = p.panics.Do("looking for events", func() (err error) {
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
func (p *polls) join(conn grpc.ClientConnInterface) (t *turns, begun int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.at[conn] == nil {
		p.at[conn] = &turns{token: make(chan struct{}, 1)}
	}
	t = p.at[conn]
	t.clients++
	return t, t.begun
}

func (p *polls) begin(t *turns) (number int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t.begun++
	return t.begun
}

func (p *polls) leave(conn grpc.ClientConnInterface, t *turns) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.clients--; t.clients == 0 {
		delete(p.at, conn)
	}
}
