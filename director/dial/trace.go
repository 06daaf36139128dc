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

// tracedStream shows the messages of a backend's stream to a leg.
type tracedStream struct {
	grpc.ClientStream
	leg    director.Leg
	headed bool
	stop   func() bool // keeps the end of the context from ending the leg; false: it has
}

// traceStream returns cs, the stream of a call with context ctx, with a leg that sees its messages.
func traceStream(ctx context.Context, cs grpc.ClientStream, leg director.Leg) grpc.ClientStream {
	stop := context.AfterFunc(ctx, func() { leg.End(transport.TimedOut(ctx, status.FromContextError(ctx.Err()).Err()), nil) })
	return &tracedStream{ClientStream: cs, leg: leg, stop: stop}
}

func (s *tracedStream) SendMsg(m any) error {
	f, err := codec.FrameOf(m)
	if err != nil {
		return err
	}
	s.leg.Request(f)
	return s.ClientStream.SendMsg(f)
}

func (s *tracedStream) RecvMsg(m any) error {
	f := codec.ReplyFrame(m)
	err := s.ClientStream.RecvMsg(f)
	if !s.headed {
		s.headed = true
		if md, err := s.Header(); err == nil && len(md) > 0 {
			s.leg.Header(md)
		}
	}
	switch {
	case err == nil:
		s.leg.Reply(f)
		return codec.Decode(m, f)
	case errors.Is(err, io.EOF):
		s.end(nil)
	default:
		s.end(transport.TimedOut(s.Context(), err))
	}
	return err
}

func (s *tracedStream) end(err error) {
	if s.stop() {
		s.leg.End(err, s.Trailer())
	}
}
