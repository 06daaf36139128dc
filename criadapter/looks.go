package criadapter

import (
	"context"
	"maps"
	"sync"

	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/internal/base/recovery"
)

// looks shares the lists of runtimes among all clients that want events. Without it each
// client would list a runtime that has no events every second. One list of a runtime is under
// way at a time. A client that asks during that time gets the next list, because the one under
// way may be older than the events that this client has.
type looks struct {
	panics recovery.Hook

	mu sync.Mutex
	at map[grpc.ClientConnInterface]*queue // :: runtime → the clients that wait for its lists
}

type queue struct{ now, next *look }

// look is one list, with the clients that wait for it.
type look struct {
	ctx     context.Context
	cancel  context.CancelFunc
	waiting int // looks.mu guards it

	done       chan struct{} // closed when the fields below are set
	listed     *snapshot
	remembered bool
	err        error
}

func newLooks(panics recovery.Hook) *looks {
	return &looks{panics: panics, at: map[grpc.ClientConnInterface]*queue{}}
}

// list returns what a runtime has now, and whether some of the answer came from memory. The caller
// may change the snapshot.
func (l *looks) list(ctx context.Context, conn grpc.ClientConnInterface) (*snapshot, bool, error) {
	one, leave := l.join(conn)
	defer leave()
	select {
	case <-one.done:
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
	if one.err != nil {
		return nil, false, one.err
	}
	return &snapshot{maps.Clone(one.listed.pods), maps.Clone(one.listed.containers), one.listed.order}, one.remembered, nil
}

// join returns the next look at a runtime, which ends when all callers of join have called leave.
func (l *looks) join(conn grpc.ClientConnInterface) (one *look, leave func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.at[conn]
	if q == nil {
		q = &queue{}
		l.at[conn] = q
	}
	if q.next == nil {
		q.next = &look{done: make(chan struct{})}
		q.next.ctx, q.next.cancel = context.WithCancel(context.Background()) // outlives the call of any client
	}
	one = q.next
	one.waiting++
	if q.now == nil {
		l.begin(conn, q)
	}
	return one, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if one.waiting--; one.waiting > 0 {
			return
		}
		one.cancel()
		if q.next == one {
			q.next = nil
		}
	}
}

// begin starts the next look at a runtime. The caller holds the lock.
func (l *looks) begin(conn grpc.ClientConnInterface, q *queue) {
	one := q.next
	q.now, q.next = one, nil
	go func() {
		one.err = l.panics.Do("looking for events", func() (err error) {
			one.listed, one.remembered, err = lookAt(one.ctx, conn)
			return err
		})
		close(one.done)
		l.mu.Lock()
		defer l.mu.Unlock()
		if q.now = nil; q.next != nil {
			l.begin(conn, q)
		} else {
			delete(l.at, conn)
		}
	}()
}
