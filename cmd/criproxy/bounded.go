package main

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// boundedConn is the connection to a backend with a bound on the calls of clients.
type boundedConn struct {
	grpc.ClientConnInterface
	name     string
	maxCalls int64
	calls    atomic.Int64
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
	return cs, nil
}
