package limits

import (
	"context"
	"path"
	"slices"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/lastknown"
)

// Conn is the connection to a backend with a bound on the calls of clients, and on the memory
// that the lists which the backend streams take.
type Conn struct {
	grpc.ClientConnInterface
	name  string
	Whole map[string]bool // :: streaming method whose answer is put together before it is passed on
	Calls bound           // of all sockets
	side  bound           // of them, those of all sockets but the main one
}

// NewConn bounds the calls of clients to a backend at maxCalls. Half of them are reserved for
// the main socket, so that clients of the other sockets cannot take what kubelet needs.
func NewConn(conn grpc.ClientConnInterface, name string, maxCalls int) *Conn {
	c := &Conn{ClientConnInterface: conn, name: name, Calls: bound{max: int64(maxCalls)}}
	c.side = bound{within: &c.Calls, max: max(1, c.Calls.max/2)}
	return c
}

// A bound limits how many of something there may be at once, and counts them. It may be a part
// of another bound.
type bound struct {
	within *bound // nil if it is a part of nothing
	max    int64
	N      atomic.Int64
}

// take counts one more. If there is no room it counts nothing and returns the bound that is
// full.
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

// give counts one less.
func (b *bound) give() {
	for ; b != nil; b = b.within {
		b.N.Add(-1)
	}
}

// WholeLists returns the methods of pkg that stream a list, of which lastknown makes one message
// before it passes it on.
func WholeLists(lists []lastknown.List, schema *codec.Schema, pkg string) map[string]bool {
	all := map[string]bool{}
	for _, m := range schema.Methods() {
		if ok, _ := path.Match("/"+pkg+".*/*", m.Name); ok && m.ServerStreams {
			all[m.Name] = slices.ContainsFunc(lists, func(l lastknown.List) bool { return l.Stream == path.Base(m.Name) })
		}
	}
	return all
}

// begin counts a call of a client until the bound that it returns is given back. It returns nil
// for a call that criproxy makes itself: those are not counted, because the state of the backend
// depends on them.
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
		return nil, status.Errorf(codes.ResourceExhausted, "criproxy: %s: backend %s has %d calls of other sockets than the main one under way, which is their limit; make fewer at once, or raise maxCalls in backends, of which that is half",
			method, c.name, c.side.max)
	default:
		return nil, status.Errorf(codes.ResourceExhausted, "criproxy: %s: backend %s has %d calls under way, which is its limit; make fewer at once, or raise maxCalls in backends",
			method, c.name, c.Calls.max)
	}
}

// Invoke makes a unary call.
func (c *Conn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	counted, err := c.begin(ctx, method)
	if err != nil {
		return err
	}
	defer counted.give()
	return c.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}

// NewStream opens a streaming call.
func (c *Conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	counted, err := c.begin(ctx, method)
	if err != nil {
		return nil, err
	}
	cs, err := c.ClientConnInterface.NewStream(ctx, desc, method, opts...)
	if err != nil {
		counted.give()
		return nil, err
	}
	context.AfterFunc(ctx, counted.give) // which ends with the call, whatever becomes of the stream
	if counted != nil && c.Whole[method] {
		return &wholeStream{ClientStream: cs, ctx: ctx, call: callOf(ctx)}, nil
	}
	return cs, nil
}

// wholeStream is a stream of a list. The small messages, which the transport does not count, are
// here until the call ends.
type wholeStream struct {
	grpc.ClientStream
	ctx  context.Context
	call *call
	came int // and was not counted
}

// RecvMsg receives a message, if there is memory for it. It does not wait: the time of a list is
// the runtime's.
func (s *wholeStream) RecvMsg(m any) error {
	if err := s.ClientStream.RecvMsg(m); err != nil {
		return err
	}
	f, ok := m.(*codec.Frame)
	if !ok || f.Len() >= smallMessage {
		return nil
	}
	if s.came += f.Len(); s.came < smallMessage {
		return nil
	}
	n := s.came
	s.came = 0
	if err := s.call.keep(s.ctx, int64(n), "a list that a runtime streams"); err != nil {
		f.Free()
		return err
	}
	return nil
}
