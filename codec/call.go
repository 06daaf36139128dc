package codec

import (
	"cmp"
	"context"
	"errors"
	"io"
	"path"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// A Caller is a connection whose messages are frames. [CallerOf] makes one of any connection, and [Conn]
// makes a connection for any message of one.
type Caller interface {
	// Call makes a unary call.
	Call(ctx context.Context, call *Call) error

	// Open opens a streaming call and sends its first message, which stays with the caller and must last
	// as long as the call. Nil sends none yet. If desc says that the client sends only one, there is no
	// other. The caller must receive until there is an error, or end ctx.
	Open(ctx context.Context, desc *grpc.StreamDesc, method string, first *Frame) (Stream, error)
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

// Ended returns the call, which has ended with err, as a stream: it yields messages, and then err.
func (call *Call) Ended(messages []*Frame, err error) Stream {
	return &ended{call, messages, cmp.Or(err, io.EOF)}
}

// ended is the stream of a call that is over. One goroutine at a time receives from it.
type ended struct {
	call     *Call
	messages []*Frame
	err      error
}

func (s *ended) Recv() (*Frame, error) {
	if len(s.messages) == 0 {
		return nil, s.err
	}
	f := s.messages[0]
	s.messages = s.messages[1:]
	return f, nil
}

func (s *ended) Send(*Frame) error {
	return status.Errorf(codes.Internal, "criproxy: %s: the client sent a second request, and the method takes one", path.Base(s.call.Method))
}

func (s *ended) CloseSend() error             { return nil }
func (s *ended) Header() (metadata.MD, error) { return s.call.Header, nil }
func (s *ended) Trailer() metadata.MD         { return s.call.Trailer }

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
// NewStream. A type that embeds a Caller is one, and needs its own Call and Open, not Invoke and NewStream.
func CallerOf(conn grpc.ClientConnInterface) Caller {
	switch c := conn.(type) {
	case Conn:
		return c.Caller
	case Caller:
		return c
	}
	return plain{conn}
}

// plain is a connection that is not a Caller.
type plain struct{ grpc.ClientConnInterface }

func (p plain) Call(ctx context.Context, call *Call) error {
	call.reply = Frame{}
	call.Reply = &call.reply
	call.opts = [...]grpc.CallOption{grpc.Header(&call.Header), grpc.Trailer(&call.Trailer)}
	return p.Invoke(ctx, call.Method, call.Request, call.Reply, call.opts[:]...)
}

func (p plain) Open(ctx context.Context, desc *grpc.StreamDesc, method string, first *Frame) (Stream, error) {
	cs, err := p.NewStream(ctx, desc, method)
	if err != nil {
		return nil, err
	}
	if first != nil {
		if err := cs.SendMsg(first); err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if !desc.ClientStreams {
			return plainStream{cs}, cs.CloseSend()
		}
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

// NewStream opens a streaming call: with its first message, unless the client may send several. Then the
// server may begin.
func (c Conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s := &connStream{conn: c, ctx: ctx, desc: desc, method: method, opts: opts, opened: make(chan struct{})}
	if desc.ClientStreams {
		s.open(nil)
	}
	return s, s.err
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

// A connStream is the stream of a Conn. It opens the call with the first message, unless the server may begin. once guards
// that: whoever wins it sets to and err, closes opened, and nothing changes them afterwards. So one goroutine may send
// while another waits in ready.
type connStream struct {
	conn   Conn
	ctx    context.Context
	desc   *grpc.StreamDesc
	method string
	opts   []grpc.CallOption

	once   sync.Once
	opened chan struct{} // closed when to and err are set
	to     Stream
	err    error
}

// open opens the call, once, and reports whether it was this time. first is nil if there is none.
func (s *connStream) open(first *Frame) (now bool) {
	s.once.Do(func() {
		defer close(s.opened)
		now, s.err = true, errPanicked // unless Open returns
		if first != nil {
			first = first.Ref() // it must last longer than SendMsg
		}
		s.to, s.err = s.conn.Open(s.ctx, s.desc, s.method, first)
	})
	return now
}

var errPanicked = status.Error(codes.Internal, "criproxy: opening a stream has panicked")

// ready waits until the call is open, or its context ends before anything was sent. An opening under way goes first: a call
// may be over, and its context with it, before open returns, and then the stream says how it ended.
func (s *connStream) ready() error {
	select {
	case <-s.opened:
	case <-s.ctx.Done():
		s.once.Do(func() { // waits for an opening under way
			s.err = status.FromContextError(s.ctx.Err()).Err()
			close(s.opened)
		})
	}
	return s.err
}

func (s *connStream) Context() context.Context { return s.ctx }

func (s *connStream) SendMsg(m any) error {
	f, err := FrameOf(m)
	if err != nil {
		return err
	}
	now := s.open(f)
	switch {
	case s.err != nil:
		return io.EOF // RecvMsg returns the failure
	case now:
		return nil
	}
	return s.to.Send(f)
}

func (s *connStream) CloseSend() error {
	if s.open(nil); s.err != nil {
		return nil // RecvMsg returns the failure
	}
	return s.to.CloseSend()
}

func (s *connStream) RecvMsg(m any) error {
	if err := s.ready(); err != nil {
		return err
	}
	f, err := s.to.Recv()
	if err == nil && !s.desc.ServerStreams {
		if _, end := s.to.Recv(); !errors.Is(end, io.EOF) {
			err = end
		}
	}
	if len(s.opts) > 0 && (err != nil || !s.desc.ServerStreams) {
		header, _ := s.to.Header() // the call has ended, and Recv has said how
		give(s.opts, header, s.to.Trailer())
	}
	if err != nil {
		return err
	}
	return Decode(m, f)
}

func (s *connStream) Header() (metadata.MD, error) {
	if s.ready() != nil {
		return nil, nil // RecvMsg returns the failure
	}
	return s.to.Header()
}

func (s *connStream) Trailer() metadata.MD {
	if s.ready() != nil {
		return nil
	}
	return s.to.Trailer()
}
