package director

import (
	"context"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/criproxy/criproxy/codec"
)

// stream is a call whose first message decides which backend gets it. The first message of a unary
// method is the whole request. As with any
// [grpc.ClientStream], one goroutine may send while another receives.
type stream struct {
	ctx    context.Context
	cancel context.CancelFunc
	table  *table
	method *method
	desc   *grpc.StreamDesc
	opts   []grpc.CallOption

	once   sync.Once
	opened chan struct{} // closed when to and err are set
	to     source
	err    error
}

// source is the stream of one backend, or the joined streams of several.
type source interface {
	send(*codec.Frame) error
	recv() (*codec.Frame, error)
	Header() (metadata.MD, error)
	Trailer() metadata.MD
	CloseSend() error
}

func newStream(ctx context.Context, t *table, m *method, desc *grpc.StreamDesc, opts []grpc.CallOption) *stream {
	ctx, cancel := context.WithCancel(ctx)
	return &stream{ctx: ctx, cancel: cancel, table: t, method: m, desc: desc, opts: opts, opened: make(chan struct{})}
}

// open chooses the backend by the first message, once. first is nil if there is none.
func (s *stream) open(first *codec.Frame) {
	s.once.Do(func() {
		s.to, s.err = s.connect(first)
		if s.err != nil {
			s.err = failed(s.method, s.err)
			defer s.cancel() // after opened is closed: before, RecvMsg would return Canceled
		}
		close(s.opened)
	})
}

func (s *stream) connect(first *codec.Frame) (source, error) {
	switch {
	case s.method.Unary() && first == nil:
		return nil, errNoRequest
	case s.method.Unary():
		return s.table.unary(s.ctx, s.cancel, s.method, first, s.opts), nil
	case first == nil:
		first = &codec.Frame{}
	}
	to, err := s.table.route(s.ctx, s.method, first)
	if err != nil {
		return nil, err
	}
	switch to.spread {
	case toAll:
		if s.method.endless {
			return s.table.endless(s.ctx, s.cancel, s.method, s.desc, first, s.opts), nil
		}
		return s.table.merge(s.ctx, s.cancel, s.method, s.desc, to.among, first, s.opts)
	case toNone:
		return empty{}, nil
	default:
		cs, err := s.table.backends[to.backend].Conn.NewStream(s.ctx, s.desc, s.method.Name, s.opts...)
		if err != nil {
			return nil, err
		}
		return &single{ClientStream: cs, table: s.table, method: s.method, backend: to.backend, translate: s.table.toFront}, nil
	}
}

// SendMsg sends a message. The first one also decides which backend gets the call.
// After a failure it returns io.EOF; RecvMsg returns the status.
func (s *stream) SendMsg(m any) error {
	f, err := codec.FrameOf(m)
	if err != nil {
		return err
	}
	s.open(f)
	if s.err != nil {
		return io.EOF
	}
	return s.to.send(f)
}

// CloseSend ends the messages of the client. If there was none, the call goes to the backend that an
// empty message would go to; a unary call fails.
func (s *stream) CloseSend() error {
	s.open(nil)
	if s.err != nil {
		return nil // RecvMsg returns the failure
	}
	return s.to.CloseSend()
}

// RecvMsg waits for a message from the backends. An error ends the call; io.EOF
// is its good end.
func (s *stream) RecvMsg(m any) error {
	if err := s.ready(); err != nil {
		return err
	}
	f, err := s.to.recv()
	if err != nil {
		s.cancel()
		if errors.Is(err, io.EOF) {
			return io.EOF
		}
		return failed(s.method, err)
	}
	return codec.Decode(m, f)
}

// ready waits until the backend is chosen. If the choice began before the call ended, ready reports no
// error for that: a call may be over, and its context with it, before open returns.
func (s *stream) ready() error {
	select {
	case <-s.opened:
	case <-s.ctx.Done():
		s.once.Do(func() { // waits for an open under way
			s.err = failed(s.method, s.ctx.Err())
			close(s.opened)
		})
		if s.to == nil && s.err == nil { // open has panicked
			return failed(s.method, s.ctx.Err())
		}
	}
	return s.err
}

// Header waits for the header. It returns nil, and no error, if the call ends before there is one.
func (s *stream) Header() (metadata.MD, error) {
	if s.ready() != nil {
		return nil, nil
	}
	return s.to.Header()
}

// Trailer returns the trailer, once RecvMsg has returned an error.
func (s *stream) Trailer() metadata.MD {
	if s.ready() != nil {
		return nil
	}
	return s.to.Trailer()
}

// Context returns the context of the call.
func (s *stream) Context() context.Context { return s.ctx }

// single is the stream of one backend.
type single struct {
	grpc.ClientStream
	table   *table
	method  *method
	backend int

	translate func(m *method, backend int, reply *codec.Frame) (*codec.Frame, error) // toFront, or toPart
}

func (s *single) send(f *codec.Frame) error {
	f, err := s.table.toBack(s.method, s.backend, f)
	if err != nil {
		return err
	}
	return s.SendMsg(f)
}

func (s *single) recv() (*codec.Frame, error) {
	f := &codec.Frame{}
	if err := s.RecvMsg(f); err != nil {
		return nil, err
	}
	return s.translate(s.method, s.backend, f)
}

// empty is the stream of a list that nothing can match.
type empty struct{}

func (empty) send(*codec.Frame) error      { return nil }
func (empty) recv() (*codec.Frame, error)  { return nil, io.EOF }
func (empty) Header() (metadata.MD, error) { return nil, nil }
func (empty) Trailer() metadata.MD         { return nil }
func (empty) CloseSend() error             { return nil }
