package transport

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
)

// open begins a call on a connection that accepts it. If open returns no error, the caller must
// unlock the mu of the stream's connection.
func (c *Client) open(ctx context.Context, method string, md metadata.MD) (*clientStream, error) {
	for {
		conn, err := c.pick(ctx)
		if err != nil {
			return nil, err
		}
		s := conn.newStream(ctx)
		conn.mu.Lock()
		if err = conn.begin(s, method, md); err == nil {
			if c.cfg.Began != nil {
				c.cfg.Began(ctx, conn.nc.RemoteAddr())
			}
			return s, nil
		}
		conn.mu.Unlock()
		if !errors.Is(err, errAgain) {
			return nil, err
		}
		c.lose(conn)
	}
}

// Call makes a unary call. It makes the call once more if the server did not process it.
func (c *Client) Call(ctx context.Context, call *codec.Call) error {
	md, _ := metadata.FromOutgoingContext(ctx)
	s, err := c.unary(ctx, call, md)
	if s.refused() {
		s, err = c.unary(ctx, call, md)
	}
	if s != nil { // the client sent something
		s.conn.mu.Lock()
		call.Header, call.Trailer = s.header, s.trailer
		s.conn.mu.Unlock()
	}
	return err
}

// unary makes one attempt of a unary call.
func (c *Client) unary(ctx context.Context, call *codec.Call, md metadata.MD) (*clientStream, error) {
	s, err := c.open(ctx, call.Method, md)
	if err != nil {
		return nil, err
	}
	s.quiet = true
	_ = s.send(call.Request, true) // fails only if the call has ended; only returns why
	s.conn.flushWith(len(s.conn.streams) > 1)
	s.conn.mu.Unlock()
	if call.Reply, err = s.only(); err != nil {
		s.cancel(err)
	}
	return s, err
}

// only waits for the only reply of a call, and for the end of the call. Its errors are worded as those of grpc-go.
func (s *clientStream) only() (*codec.Frame, error) {
	f, err := s.next()
	if errors.Is(err, io.EOF) {
		return nil, status.Error(codes.Internal, "cardinality violation: received no response message from non-server-streaming RPC")
	}
	if err != nil {
		return nil, err
	}
	another, err := s.next()
	if errors.Is(err, io.EOF) {
		return f, nil
	}
	f.Free()
	if err == nil {
		another.Free()
		err = status.Error(codes.Internal, "cardinality violation: expected <EOF> for non server-streaming RPCs, but received another message")
	}
	return nil, err
}
