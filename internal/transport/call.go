package transport

import (
	"context"
	"errors"
	"io"
	"math"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
)

// callOptions are the call options that the client supports.
type callOptions struct {
	header, trailer *metadata.MD
	peer            *peer.Peer
	wait            bool
	send, receive   int // length of the longest message, in bytes
	finish          []func(error)
}

func (c *Client) options(opts []grpc.CallOption) callOptions {
	o := callOptions{send: math.MaxInt32, receive: c.cfg.MaxMessage}
	for _, opt := range opts {
		switch opt := opt.(type) {
		case grpc.HeaderCallOption:
			o.header = opt.HeaderAddr
		case grpc.TrailerCallOption:
			o.trailer = opt.TrailerAddr
		case grpc.PeerCallOption:
			o.peer = opt.PeerAddr
		case grpc.FailFastCallOption:
			o.wait = !opt.FailFast
		case grpc.MaxSendMsgSizeCallOption:
			o.send = opt.MaxSendMsgSize
		case grpc.MaxRecvMsgSizeCallOption:
			o.receive = min(o.receive, opt.MaxRecvMsgSize)
		case grpc.OnFinishCallOption:
			o.finish = append(o.finish, opt.OnFinish)
		}
	}
	return o
}

// done stores the results of the call where its options say, and returns err. s is nil if the
// client sent nothing.
func (o *callOptions) done(s *clientStream, err error) error {
	if s != nil {
		s.conn.mu.Lock()
		header, trailer := s.header, s.trailer
		s.conn.mu.Unlock()
		if o.header != nil {
			*o.header = header
		}
		if o.trailer != nil {
			*o.trailer = trailer
		}
		if o.peer != nil {
			*o.peer = s.on.peer
		}
	}
	for _, f := range o.finish {
		f(err)
	}
	return err
}

// message returns m as a frame, or an error if m is too long.
func (o *callOptions) message(m any) (*codec.Frame, error) {
	f, err := codec.FrameOf(m)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if f.Len() > o.send {
		return nil, status.Errorf(codes.ResourceExhausted, "trying to send message larger than max (%d vs. %d)", f.Len(), o.send)
	}
	return f, nil
}

// open begins a call on a connection that accepts it. If open returns no error, the caller must
// unlock the mu of the stream's connection.
func (c *Client) open(ctx context.Context, o *callOptions, method string, md metadata.MD) (*clientStream, error) {
	for {
		conn, err := c.pick(ctx, o.wait)
		if err != nil {
			return nil, err
		}
		s := conn.newStream(ctx)
		conn.mu.Lock()
		if err = conn.begin(s, method, md); err == nil {
			return s, nil
		}
		conn.mu.Unlock()
		if !errors.Is(err, errAgain) {
			return nil, err
		}
		c.lose(conn)
	}
}

// Invoke makes a unary call. It makes the call once more if the server did not process it.
func (c *Client) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	o := c.options(opts)
	md, _ := metadata.FromOutgoingContext(ctx)
	request, err := o.message(args)
	if err != nil {
		return o.done(nil, err)
	}
	s, f, err := c.unary(ctx, &o, method, md, request)
	if s.refused() {
		s, f, err = c.unary(ctx, &o, method, md, request)
	}
	if err == nil {
		err = codec.Decode(reply, f)
	}
	return o.done(s, err)
}

// unary makes one attempt of a unary call.
func (c *Client) unary(ctx context.Context, o *callOptions, method string, md metadata.MD, request *codec.Frame) (*clientStream, *codec.Frame, error) {
	s, err := c.open(ctx, o, method, md)
	if err != nil {
		return nil, nil, err
	}
	s.quiet = true
	_ = s.send(request, true) // fails only if the call has ended; only returns why
	s.conn.flushWith(len(s.conn.streams) > 1)
	s.conn.mu.Unlock()
	f, err := s.only(o)
	if err != nil {
		s.cancel(err)
	}
	return s, f, err
}

// only waits for the only reply of a call, and for the end of the call.
func (s *clientStream) only(o *callOptions) (*codec.Frame, error) {
	f, err := s.next(o)
	if errors.Is(err, io.EOF) {
		return nil, status.Error(codes.Internal, "cardinality violation: received no response message from non-server-streaming RPC")
	}
	if err != nil {
		return nil, err
	}
	if err = s.last(o); err != nil {
		f.Free()
		return nil, err
	}
	return f, nil
}

// last waits for the end of a call whose only reply the caller has received.
func (s *clientStream) last(o *callOptions) error {
	f, err := s.next(o)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err == nil {
		f.Free()
		err = status.Error(codes.Internal, "cardinality violation: expected <EOF> for non server-streaming RPCs, but received another message")
	}
	return err
}
