package dial

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/transport"
)

// A stream is a call on the backend. Its messages are those of the newest version, whichever the backend
// has, and its errors are explained. A leg sees what passes. Only the receiver uses headed. stop decides who ends the leg:
// the receiver, or the end of the context, which may come while nobody receives.
type stream struct {
	codec.Stream
	ctx     context.Context
	conn    *Conn
	wording wording
	leg     director.Leg // nil: there is no Tracer, or it does not want this call
	headed  bool         // the leg has got the header
	stop    func() bool  // keeps the end of the context from ending the leg; false: it has
}

// Open is NewStream.
func (c *Conn) Open(ctx context.Context, desc *grpc.StreamDesc, name string, first *codec.Frame) (codec.Stream, error) {
	done, err := c.admit(ctx, name)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, done) // ctx ends with the call, even if the client does not read the stream to its end
	w, err := c.wording(ctx, name)
	if err != nil {
		return nil, err
	}
	s := &stream{conn: c, wording: w}
	s.ctx, s.leg = c.trace(ctx, w.name)
	open := func(f *codec.Frame) (err error) {
		s.Stream, err = c.cc.Open(s.ctx, desc, w.name, f)
		return err
	}
	if err := s.pass(first, open); err != nil {
		if s.leg != nil {
			s.leg.End(err, nil)
		}
		return nil, c.explain(w, err, nil, nil)
	}
	if s.leg != nil {
		s.stop = context.AfterFunc(s.ctx, func() {
			s.leg.End(transport.TimedOut(s.ctx, status.FromContextError(s.ctx.Err()).Err()), nil)
		})
	}
	return s, nil
}

// pass sends a message to the backend; nil is none.
func (s *stream) pass(f *codec.Frame, send func(*codec.Frame) error) error {
	if f == nil {
		return send(nil)
	}
	if to := s.wording.to; to != nil {
		var err error
		if f, err = to.Request(f.Ref()); err != nil {
			return unreadable(to.Method, err)
		}
	}
	if s.leg != nil {
		s.leg.Request(f)
	}
	return send(f)
}

func (s *stream) Send(f *codec.Frame) error { return s.pass(f, s.Stream.Send) }

// Recv returns a message of the newest version. The leg sees it as the backend sent it.
func (s *stream) Recv() (*codec.Frame, error) {
	f, err := s.Stream.Recv()
	if s.leg != nil {
		s.show(f, err)
	}
	switch to := s.wording.to; {
	case errors.Is(err, io.EOF), errors.Is(err, context.Canceled):
	case err != nil:
		header, _ := s.Header()
		err = s.conn.explain(s.wording, err, header, s.Trailer())
	case to != nil:
		if f, err = to.Reply(f); err != nil {
			err = unreadable(to.Method, err)
		}
	}
	return f, err
}

// show shows the leg what came from the backend.
func (s *stream) show(f *codec.Frame, err error) {
	if !s.headed {
		s.headed = true
		if md, err := s.Header(); err == nil && transport.SaysMore(md) {
			s.leg.Header(md)
		}
	}
	if err == nil {
		s.leg.Reply(f)
		return
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if s.stop() {
		s.leg.End(transport.TimedOut(s.ctx, err), s.Trailer())
	}
}
