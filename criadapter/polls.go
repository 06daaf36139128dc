package criadapter

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"

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

// turns has the clients that poll a runtime. It lasts as long as there is one.
type turns struct {
	clients int          // polls.mu guards it
	begun   atomic.Int64 // how many lists were begun

	token  chan struct{} // a lock that holds a token while a client lists; guards latest
	latest poll
}

// poll is one list of a runtime.
type poll struct {
	number int64 // counts from 1
	listed *snapshot
	cached bool
	err    error
}

func newPolls(panics recovery.Hook) *polls {
	return &polls{panics: panics, at: map[grpc.ClientConnInterface]*turns{}}
}

// list returns what a runtime has now, and whether some of the answer came from the cache. The caller
// may change the snapshot. The number of the latest list that had begun before the call tells whether a list of another
// client is recent enough: a later number was begun after this client asked.
func (p *polls) list(ctx context.Context, conn grpc.ClientConnInterface) (*snapshot, bool, error) {
	t := p.join(conn)
	begun := t.begun.Load()
	defer p.leave(conn, t)
	select {
	case t.token <- struct{}{}:
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
	defer func() { <-t.token }()
	if t.latest.number <= begun {
		one := poll{number: t.begun.Add(1)}
		one.err = p.panics.Do("listing for events", func() (err error) {
			one.listed, one.cached, err = takeSnapshot(ctx, conn)
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
	return &snapshot{maps.Clone(s.pods), maps.Clone(s.containers), s.order, s.asked}, t.latest.cached, nil
}

// join adds a client.
func (p *polls) join(conn grpc.ClientConnInterface) *turns {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.at[conn] == nil {
		p.at[conn] = &turns{token: make(chan struct{}, 1)}
	}
	p.at[conn].clients++
	return p.at[conn]
}

// leave removes a client, and with the last one the runtime.
func (p *polls) leave(conn grpc.ClientConnInterface, t *turns) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.clients--; t.clients == 0 {
		delete(p.at, conn)
	}
}
