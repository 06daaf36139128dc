package limits

import (
	"context"
	"sync/atomic"
)

// Calls bounds the calls of clients to one backend. It is safe for concurrent use, and takes no lock: a call at the bound is
// refused, and never waits.
type Calls struct {
	name string
	all  bound // of all sockets
	side bound // of all sockets but the main one
}

// NewCalls bounds the calls of clients to a backend at maxCalls. Half of them are reserved for
// the main socket, so that clients of the other sockets cannot take what kubelet needs.
func NewCalls(name string, maxCalls int) *Calls {
	c := &Calls{name: name, all: bound{max: int64(maxCalls)}}
	c.side = bound{within: &c.all, max: max(1, c.all.max/2)}
	c.all.give, c.side.give = c.all.release, c.side.release
	return c
}

// UnderWay returns how many calls of clients the backend has not answered.
func (c *Calls) UnderWay() int64 { return c.all.n.Load() }

// A bound counts the calls under way, and limits their number. It may be a part of another bound, which counts its calls, too: n is
// never more than max for longer than take lasts. It is safe for concurrent use, without a lock.
type bound struct {
	within *bound // nil if it is not a part of another
	max    int64
	give   func() // is release
	n      atomic.Int64
}

// take counts one more call. If a bound is full it counts nothing, and returns that bound.
func (b *bound) take() (full *bound) {
	if b.n.Add(1) > b.max {
		b.n.Add(-1)
		return b
	}
	if b.within == nil {
		return nil
	}
	if full = b.within.take(); full != nil {
		b.n.Add(-1)
	}
	return full
}

// release counts one call less.
func (b *bound) release() {
	for ; b != nil; b = b.within {
		b.n.Add(-1)
	}
}

// Admit counts a call of a client, until done is called. A call that criproxy makes itself counts nothing: such calls must
// not fail, because they determine the state of the backend.
func (c *Calls) Admit(ctx context.Context, method string) (done func(), err error) {
	call := callOf(ctx)
	if call == nil {
		return func() {}, nil
	}
	counted := &c.all
	if !call.client.Socket.Main.Load() {
		counted = &c.side
	}
	switch counted.take() {
	case nil:
		return counted.give, nil
	case &c.side:
		return nil, refuse("criproxy: %s: backend %s has as many calls under way from other sockets than the main one as their limit allows (%d); make fewer at once, or raise maxCalls in backends, of which it is half",
			method, c.name, c.side.max)
	default:
		return nil, refuse("criproxy: %s: backend %s has as many calls under way as its limit allows (%d); make fewer at once, or raise maxCalls in backends",
			method, c.name, c.all.max)
	}
}
