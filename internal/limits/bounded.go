package limits

import (
	"context"
	"errors"
	"io"
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
	h := reservationOf(ctx)
	if h == nil {
		return nil, nil
	}
	counted := &c.Calls
	if !h.client.Socket.Main.Load() {
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
	if h := reservationOf(ctx); h != nil && h.mayBeLong() {
		return c.invokeInRoom(ctx, h, method, args, reply, opts)
	}
	return c.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}

// invokeInRoom makes a unary call as a stream. That shows when the backend has begun to answer,
// before the answer is read. Until then the call takes no memory, however long the backend
// thinks.
func (c *Conn) invokeInRoom(ctx context.Context, h *reservation, method string, args, reply any, opts []grpc.CallOption) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Without the options: gRPC would store to them when the stream ends, which may be after this returns.
	cs, err := c.ClientConnInterface.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
	if err != nil {
		return err
	}
	if err := cs.SendMsg(args); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := cs.CloseSend(); err != nil {
		return err
	}
	header, trailer := codec.MetadataOf(opts)
	md, _ := cs.Header() // RecvMsg tells what went wrong
	if header != nil {
		*header = md
	}
	if err := h.room(ctx); err != nil {
		return err
	}
	f := &codec.Frame{}
	err = cs.RecvMsg(f)
	h.arrived(int64(f.Len()))
	if errors.Is(err, io.EOF) {
		err = status.Errorf(codes.Internal, "criproxy: %s: backend %s ended the call with success and without a reply; see its log", method, c.name)
	} else if err == nil {
		if err = cs.RecvMsg(&codec.Frame{}); err == nil {
			f.Free()
			return status.Errorf(codes.Internal, "criproxy: %s: backend %s sent two replies to a call that has one; see its log", method, c.name)
		}
	}
	if trailer != nil {
		*trailer = cs.Trailer()
	}
	if !errors.Is(err, io.EOF) {
		f.Free()
		return err
	}
	return codec.Deliver(reply, f)
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
		return &wholeStream{ClientStream: cs, ctx: ctx, reservation: reservationOf(ctx)}, nil
	}
	return cs, nil
}

// wholeStream is a stream whose messages take memory as they come, until the call ends.
type wholeStream struct {
	grpc.ClientStream
	ctx         context.Context
	reservation *reservation
	begun       bool
}

// RecvMsg receives a message, if there is room for it.
func (s *wholeStream) RecvMsg(m any) error {
	if !s.begun {
		s.begun = true
		_, _ = s.Header() // RecvMsg tells what went wrong
		if err := s.reservation.room(s.ctx); err != nil {
			return err
		}
		defer s.reservation.arrived(0)
	}
	if err := s.ClientStream.RecvMsg(m); err != nil {
		return err
	}
	f, ok := m.(*codec.Frame)
	if !ok {
		return nil
	}
	if err := s.reservation.keeps(int64(f.Len())); err != nil {
		f.Free()
		return err
	}
	return nil
}
