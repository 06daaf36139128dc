package codec

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// A Caller is a connection whose messages are frames. [CallerOf] makes one of any connection, and [Conn]
// makes a connection for any message of one.
type Caller interface {
	// Call makes a unary call.
	Call(ctx context.Context, call *Call) error

	// Open opens a streaming call. The caller must receive until there is an error, or end ctx.
	Open(ctx context.Context, desc *grpc.StreamDesc, method string) (Stream, error)
}

// A Call is a unary call. Its maker sets Method and Request, keeps the Request until the call has
// ended, and then reads the other fields and frees Reply. A Call is for one goroutine at a time.
type Call struct {
	Method          string // full name
	Request, Reply  *Frame // Reply counts if there was no error
	Header, Trailer metadata.MD

	WellFormed bool // the connection has checked Reply, and it is well formed
	UTF8       bool // all text in it is UTF-8

	reply Frame // with the call in one allocation
	opts  [2]grpc.CallOption
}

// OnAs makes the call on a connection with another method and request, and leaves the caller's in the
// Call.
func (call *Call) OnAs(ctx context.Context, c Caller, name string, request *Frame) error {
	method, asked := call.Method, call.Request
	defer func() { call.Method, call.Request = method, asked }()
	call.Method, call.Request = name, request
	return c.Call(ctx, call)
}

// Answer has the call end as another one has, whose reply it takes over.
func (call *Call) Answer(as *Call) {
	call.Reply, call.Header, call.Trailer = as.Reply, as.Header, as.Trailer
}

// A Stream is a streaming call. As with a [grpc.ClientStream], one goroutine may send while another
// receives.
type Stream interface {
	// Send sends a message, which stays with the caller. After a failure it returns io.EOF; Recv
	// returns the status.
	Send(f *Frame) error
	// Recv waits for a message, which is the caller's. An error ends the call; io.EOF is its good end.
	Recv() (*Frame, error)
	// CloseSend says that there are no more messages to send.
	CloseSend() error
	// Header waits for the header. It is nil if the call ends before there is one.
	Header() (metadata.MD, error)
	// Trailer returns the trailer, once Recv has returned an error.
	Trailer() metadata.MD
}

// CallerOf returns a connection as a Caller: the Caller that it is, or one that calls its Invoke and
// NewStream.
func CallerOf(conn grpc.ClientConnInterface) Caller {
	switch c := conn.(type) {
	case Conn:
		return c.Caller
	case Caller:
		return c
	}
	return plain{conn}
}

// plain is a connection that is no Caller.
type plain struct{ grpc.ClientConnInterface }

func (p plain) Call(ctx context.Context, call *Call) error {
	call.reply = Frame{}
	call.Reply = &call.reply
	call.opts = [...]grpc.CallOption{grpc.Header(&call.Header), grpc.Trailer(&call.Trailer)}
	return p.Invoke(ctx, call.Method, call.Request, call.Reply, call.opts[:]...)
}

func (p plain) Open(ctx context.Context, desc *grpc.StreamDesc, method string) (Stream, error) {
	cs, err := p.NewStream(ctx, desc, method)
	if err != nil {
		return nil, err
	}
	return plainStream{cs}, nil
}

type plainStream struct{ grpc.ClientStream }

func (s plainStream) Send(f *Frame) error { return s.SendMsg(f) }

func (s plainStream) Recv() (*Frame, error) {
	f := &Frame{}
	if err := s.RecvMsg(f); err != nil {
		return nil, err
	}
	return f, nil
}

// A Conn is a Caller for those who know it only as a [grpc.ClientConnInterface]. Its messages are
// frames or protobuf messages. Of the options of a call only those for header and trailer count.
type Conn struct{ Caller }

// Invoke makes a unary call.
func (c Conn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	request, err := FrameOf(args)
	if err != nil {
		return err
	}
	call := &Call{Method: method, Request: request}
	err = c.Call(ctx, call)
	give(opts, call.Header, call.Trailer)
	if err != nil {
		return err
	}
	return Decode(reply, call.Reply)
}

// NewStream opens a streaming call.
func (c Conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := c.Open(ctx, desc, method)
	if err != nil {
		return nil, err
	}
	return &connStream{s, ctx, !desc.ServerStreams, opts}, nil
}

// give stores header and trailer where the options of a call want them.
func give(opts []grpc.CallOption, header, trailer metadata.MD) {
	toHeader, toTrailer := MetadataOf(opts)
	if toHeader != nil {
		*toHeader = header
	}
	if toTrailer != nil {
		*toTrailer = trailer
	}
}

// connStream is the stream of a Conn.
type connStream struct {
	Stream
	ctx    context.Context
	single bool // one message ends the call
	opts   []grpc.CallOption
}

func (s *connStream) Context() context.Context { return s.ctx }

func (s *connStream) SendMsg(m any) error {
	f, err := FrameOf(m)
	if err != nil {
		return err
	}
	return s.Send(f)
}

func (s *connStream) RecvMsg(m any) error {
	f, err := s.Recv()
	if err == nil && s.single {
		if _, err = s.Recv(); errors.Is(err, io.EOF) {
			err = nil
		}
	}
	if len(s.opts) > 0 && (err != nil || s.single) {
		header, _ := s.Header() // the call has ended, and Recv has said how
		give(s.opts, header, s.Trailer())
	}
	if err != nil {
		return err
	}
	return Decode(m, f)
}
