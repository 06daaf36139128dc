package main

import (
	"context"
	"path"
	"slices"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/known"
)

// boundedConn is the connection to a backend with a bound on the calls of clients, and
// on what the lists take that it streams.
type boundedConn struct {
	grpc.ClientConnInterface
	name     string
	maxCalls int64
	whole    map[string]bool // :: streaming method whose answer is put together before it is passed on
	calls    atomic.Int64
}

// wholeLists are the methods that stream lists, of which known makes one message.
func wholeLists(lists []known.List, schema *codec.Schema, pkg string) map[string]bool {
	all := map[string]bool{}
	for _, m := range schema.Methods() {
		if ok, _ := path.Match("/"+pkg+".*/*", m.Name); ok && m.ServerStreams {
			all[m.Name] = slices.ContainsFunc(lists, func(l known.List) bool { return l.Stream == path.Base(m.Name) })
		}
	}
	return all
}

// begin counts a call of a client, if there is room for it, until end is called. Our own
// calls are not counted: without them nobody knows how the backend is.
func (c *boundedConn) begin(ctx context.Context, method string) (counted bool, err error) {
	if holdOf(ctx) == nil {
		return false, nil
	}
	if n := c.calls.Add(1); n > c.maxCalls {
		c.calls.Add(-1)
		return false, status.Errorf(codes.ResourceExhausted, "criproxy: %s: backend %s has %d calls under way, which is its limit; make fewer at once, or raise maxCalls in backends",
			method, c.name, c.maxCalls)
	}
	return true, nil
}

func (c *boundedConn) end(counted bool) {
	if counted {
		c.calls.Add(-1)
	}
}

// Invoke does a unary call.
func (c *boundedConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	counted, err := c.begin(ctx, method)
	if err != nil {
		return err
	}
	defer c.end(counted)
	return c.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}

// NewStream opens a streaming call.
func (c *boundedConn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	counted, err := c.begin(ctx, method)
	if err != nil {
		return nil, err
	}
	cs, err := c.ClientConnInterface.NewStream(ctx, desc, method, opts...)
	if err != nil {
		c.end(counted)
		return nil, err
	}
	context.AfterFunc(ctx, func() { c.end(counted) }) // which ends with the call, whatever becomes of the stream
	if counted && c.whole[method] {
		return &wholeStream{cs, holdOf(ctx)}, nil
	}
	return cs, nil
}

// wholeStream is a stream whose messages take memory as they come, until the call ends.
type wholeStream struct {
	grpc.ClientStream
	hold *hold
}

// RecvMsg receives a message, if there is room for it.
func (s *wholeStream) RecvMsg(m any) error {
	if err := s.ClientStream.RecvMsg(m); err != nil {
		return err
	}
	f, ok := m.(*codec.Frame)
	if !ok {
		return nil
	}
	if err := s.hold.keeps(int64(f.Len())); err != nil {
		f.Free()
		return err
	}
	return nil
}
