package limits

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/codec"
)

// Conn is a connection to a backend that bounds the calls of clients. It is safe for concurrent use, and takes no lock: a call at
// the bound is refused, and never waits.
type Conn struct {
	codec.Caller
	name  string
	Calls bound // of all sockets
	side  bound // of all sockets but the main one
}

// NewConn bounds the calls of clients to a backend at maxCalls. Half of them are reserved for
// the main socket, so that clients of the other sockets cannot take what kubelet needs.
func NewConn(conn codec.Caller, name string, maxCalls int) *Conn {
	c := &Conn{Caller: conn, name: name, Calls: bound{max: int64(maxCalls)}}
	c.side = bound{within: &c.Calls, max: max(1, c.Calls.max/2)}
	return c
}

// A bound counts the calls under way, and limits their number. It may be a part of another bound.
type bound struct {
	within *bound // nil if it is not a part of another
	max    int64
	N      atomic.Int64
}

// take counts one more call. If a bound is full it counts nothing, and returns that bound.
func (b *bound) take() (full *bound) {
	if b.N.Add(1) > b.max {
		b.N.Add(-1)
		return b
	}
	if b.within == nil {
		return nil
	}
	if full = b.within.take(); full != nil {
		b.N.Add(-1)
	}
	return full
}

// give counts one call less.
func (b *bound) give() {
	for ; b != nil; b = b.within {
		b.N.Add(-1)
	}
}

// begin counts a call of a client. The caller calls give on the bound that it returns when the call
// ends. For a call that criproxy makes itself it counts nothing and returns nil: such calls must not
// fail, because they determine the state of the backend.
func (c *Conn) begin(ctx context.Context, method string) (*bound, error) {
	call := callOf(ctx)
	if call == nil {
		return nil, nil
	}
	counted := &c.Calls
	if !call.client.Socket.Main.Load() {
		counted = &c.side
	}
	switch counted.take() {
	case nil:
		return counted, nil
	case &c.side:
		return nil, refuse("criproxy: %s: backend %s has as many calls under way from other sockets than the main one as their limit allows (%d); make fewer at once, or raise maxCalls in backends, of which it is half",
			method, c.name, c.side.max)
	default:
		return nil, refuse("criproxy: %s: backend %s has as many calls under way as its limit allows (%d); make fewer at once, or raise maxCalls in backends",
			method, c.name, c.Calls.max)
	}
}

// Call makes a unary call.
func (c *Conn) Call(ctx context.Context, call *codec.Call) error {
	counted, err := c.begin(ctx, call.Method)
	if err != nil {
		return err
	}
	defer counted.give()
	return c.Caller.Call(ctx, call)
}

// Open opens a streaming call.
func (c *Conn) Open(ctx context.Context, desc *grpc.StreamDesc, method string, first *codec.Frame) (codec.Stream, error) {
	counted, err := c.begin(ctx, method)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, counted.give) // ctx ends with the call, even if the client does not read the stream to its end
	return c.Caller.Open(ctx, desc, method, first)
}
