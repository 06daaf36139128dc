package dial

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/transport"
)

// tracedStream shows the messages of a backend's stream to a leg.
type tracedStream struct {
	codec.Stream
	ctx    context.Context
	leg    director.Leg
	headed bool
	stop   func() bool // keeps the end of the context from ending the leg; false: it has
}

// traceStream returns s, the stream of a call with context ctx, with a leg that sees its messages.
func traceStream(ctx context.Context, s codec.Stream, leg director.Leg) codec.Stream {
	stop := context.AfterFunc(ctx, func() { leg.End(transport.TimedOut(ctx, status.FromContextError(ctx.Err()).Err()), nil) })
	return &tracedStream{Stream: s, ctx: ctx, leg: leg, stop: stop}
}

func (s *tracedStream) Send(f *codec.Frame) error {
	s.leg.Request(f)
	return s.Stream.Send(f)
}

func (s *tracedStream) Recv() (*codec.Frame, error) {
	f, err := s.Stream.Recv()
	if !s.headed {
		s.headed = true
		if md, err := s.Header(); err == nil && len(md) > 0 {
			s.leg.Header(md)
		}
	}
	switch {
	case err == nil:
		s.leg.Reply(f)
	case errors.Is(err, io.EOF):
		s.end(nil)
	default:
		s.end(transport.TimedOut(s.ctx, err))
	}
	return f, err
}

func (s *tracedStream) end(err error) {
	if s.stop() {
		s.leg.End(err, s.Trailer())
	}
}
