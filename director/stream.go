package director

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/codec"
)

// Open is NewStream with frames.
func (d *Director) Open(ctx context.Context, desc *grpc.StreamDesc, name string, first *codec.Frame) (codec.Stream, error) {
	t := d.table.Load()
	m := t.methods[name]
	if m == nil {
		if err := t.refuse(name); err != nil {
			return nil, err
		}
		return t.calls[0].Open(ctx, desc, name, first)
	}
	ctx, cancel := context.WithCancel(ctx)
	s, err := t.open(ctx, cancel, m, first)
	if err != nil {
		cancel()
		return nil, failed(m, err)
	}
	return &stream{s, m, cancel}, nil
}

// open opens a call. Its first message decides which backend gets it. A call without one goes to the
// backend that an empty message would go to; a unary call fails.
func (t *table) open(ctx context.Context, cancel context.CancelFunc, m *method, first *codec.Frame) (codec.Stream, error) {
	request := first
	switch {
	case m.Unary() && first == nil:
		return nil, errNoRequest
	case m.Unary():
		defer cancel()
		call := &codec.Call{Method: m.Name, Request: first}
		err := t.panics.Do(m.Name, func() error { return t.call(ctx, call) })
		if err != nil {
			return call.Ended(nil, err), nil // with header and trailer
		}
		return call.Ended([]*codec.Frame{call.Reply}, nil), nil
	case first == nil:
		request = &codec.Frame{}
	}
	to, err := t.route(ctx, m, request)
	switch {
	case err != nil:
		return nil, err
	case to.spread == toNone:
		return (&codec.Call{Method: m.Name}).Ended(nil, nil), nil
	case to.spread == toAll && m.endless:
		return t.endless(ctx, cancel, m, request), nil
	case to.spread == toAll:
		return t.merge(ctx, cancel, m, to.among, request), nil
	}
	return t.single(ctx, m, to.backend, first, t.toFront)
}

// A stream is a call on one backend or several, as the client sees it. It gives errors their status, and ends the calls on the
// backends when the client's is over.
type stream struct {
	codec.Stream
	method *method
	cancel context.CancelFunc
}

// Recv waits for a message from the backends.
func (s *stream) Recv() (*codec.Frame, error) {
	f, err := s.Stream.Recv()
	if err == nil {
		return f, nil
	}
	s.cancel()
	if errors.Is(err, io.EOF) {
		return nil, io.EOF
	}
	return nil, failed(s.method, err)
}

// A single is the stream of one backend, with front names. It keeps to the table with which it began. One goroutine may send while
// another receives.
type single struct {
	codec.Stream
	table   *table
	method  *method
	backend int

	translate func(m *method, backend int, reply *codec.Frame) (*codec.Frame, error) // toFront, or toPart
}

// single opens a call on one backend.
func (t *table) single(ctx context.Context, m *method, backend int, first *codec.Frame, translate func(*method, int, *codec.Frame) (*codec.Frame, error)) (codec.Stream, error) {
	if first != nil {
		var err error
		if first, err = t.toBack(m, backend, first); err != nil {
			return nil, err
		}
	}
	s, err := t.calls[backend].Open(ctx, &grpc.StreamDesc{ClientStreams: m.ClientStreams, ServerStreams: m.ServerStreams}, m.Name, first)
	if err != nil {
		return nil, err
	}
	return &single{s, t, m, backend, translate}, nil
}

// Send sends a message with back names.
func (s *single) Send(f *codec.Frame) error {
	f, err := s.table.toBack(s.method, s.backend, f)
	if err != nil {
		return err
	}
	return s.Stream.Send(f)
}

// Recv returns a message with front names. Its error is the backend's own.
func (s *single) Recv() (*codec.Frame, error) {
	f, err := s.Stream.Recv()
	if err != nil {
		return nil, err
	}
	return s.translate(s.method, s.backend, f)
}
