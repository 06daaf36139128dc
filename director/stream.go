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

	once   sync.Once
	opened chan struct{} // closed when to and err are set
	to     codec.Stream
	err    error
}

func newStream(ctx context.Context, t *table, m *method, desc *grpc.StreamDesc) *stream {
	ctx, cancel := context.WithCancel(ctx)
	return &stream{ctx: ctx, cancel: cancel, table: t, method: m, desc: desc, opened: make(chan struct{})}
}

// open chooses the backend by the first message, once. first is nil if there is none.
func (s *stream) open(first *codec.Frame) {
	s.once.Do(func() {
		s.to, s.err = s.connect(first)
		if s.err != nil {
			s.err = failed(s.method, s.err)
			defer s.cancel() // after opened is closed: before, Recv would return Canceled
		}
		close(s.opened)
	})
}

func (s *stream) connect(first *codec.Frame) (codec.Stream, error) {
	switch {
	case s.method.Unary() && first == nil:
		return nil, errNoRequest
	case s.method.Unary():
		return s.table.unary(s.ctx, s.cancel, s.method, first), nil
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
			return s.table.endless(s.ctx, s.cancel, s.method, s.desc, first), nil
		}
		return s.table.merge(s.ctx, s.cancel, s.method, s.desc, to.among, first)
	case toNone:
		return empty{}, nil
	default:
		one, err := s.table.calls[to.backend].Open(s.ctx, s.desc, s.method.Name)
		if err != nil {
			return nil, err
		}
		return &single{Stream: one, table: s.table, method: s.method, backend: to.backend, translate: s.table.toFront}, nil
	}
}

// Send sends a message. The first one also decides which backend gets the call.
func (s *stream) Send(f *codec.Frame) error {
	s.open(f)
	if s.err != nil {
		return io.EOF
	}
	return s.to.Send(f)
}

// CloseSend ends the messages of the client. If there was none, the call goes to the backend that an
// empty message would go to; a unary call fails.
func (s *stream) CloseSend() error {
	s.open(nil)
	if s.err != nil {
		return nil // Recv returns the failure
	}
	return s.to.CloseSend()
}

// Recv waits for a message from the backends.
func (s *stream) Recv() (*codec.Frame, error) {
	if err := s.ready(); err != nil {
		return nil, err
	}
	f, err := s.to.Recv()
	if err != nil {
		s.cancel()
		if errors.Is(err, io.EOF) {
			return nil, io.EOF
		}
		return nil, failed(s.method, err)
	}
	return f, nil
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

// Trailer returns the trailer, once Recv has returned an error.
func (s *stream) Trailer() metadata.MD {
	if s.ready() != nil {
		return nil
	}
	return s.to.Trailer()
}

// single is the stream of one backend.
type single struct {
	codec.Stream
	table   *table
	method  *method
	backend int

	translate func(m *method, backend int, reply *codec.Frame) (*codec.Frame, error) // toFront, or toPart
}

func (s *single) Send(f *codec.Frame) error {
	f, err := s.table.toBack(s.method, s.backend, f)
	if err != nil {
		return err
	}
	return s.Stream.Send(f)
}

func (s *single) Recv() (*codec.Frame, error) {
	f, err := s.Stream.Recv()
	if err != nil {
		return nil, err
	}
	return s.translate(s.method, s.backend, f)
}

// empty is the stream of a list that nothing can match.
type empty struct{}

func (empty) Send(*codec.Frame) error      { return nil }
func (empty) Recv() (*codec.Frame, error)  { return nil, io.EOF }
func (empty) Header() (metadata.MD, error) { return nil, nil }
func (empty) Trailer() metadata.MD         { return nil }
func (empty) CloseSend() error             { return nil }
