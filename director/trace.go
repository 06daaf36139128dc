package director

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
)

// A Tracer sees the legs of calls: the one between client and director, with front names, and
// those between director and backends, with back names and in the version that the backend
// speaks.
//
// The call waits while a method of a Tracer or a [Leg] runs, so each must return at once.
// Several goroutines call the Leg of a stream at the same time.
type Tracer interface {
	// Begin is called when a leg begins. The call goes on with the context that Begin
	// returns, so that the legs of one call can find each other. A nil Leg declines to see
	// the leg. The ctx of a backend's leg has the metadata for the backend, as outgoing
	// metadata.
	Begin(ctx context.Context, info LegInfo) (context.Context, Leg)
}

// LegInfo describes a leg that begins.
type LegInfo struct {
	Method  string // as it is called on this leg
	Backend string // of a backend's leg, its name; see Primary
	Primary bool   // the backend is the primary
	Client  bool   // it is the client's leg
	Endless bool   // the call does not end by itself
	// Metadata is what the client sent, on the client's leg. A Tracer that keeps it copies it
	// before Begin returns.
	Metadata metadata.MD
}

// A Leg is one leg of a call. Frames stay the call's: a Leg that keeps one takes a reference
// of its own, or copies it, before the method returns.
type Leg interface {
	Request(f *codec.Frame) // a message towards the backend
	Header(md metadata.MD)  // the header of the answer
	Reply(f *codec.Frame)   // a message towards the client
	// End is the leg's last event: its status, nil for OK, and the trailer.
	End(err error, trailer metadata.MD)
}

// tracedStream shows what passes on a stream of a backend.
type tracedStream struct {
	grpc.ClientStream
	leg    Leg
	headed bool
	stop   func() bool // takes back what ends the leg of a stream that is not read to its end
}

// traceStream shows what passes on cs, the stream of a call with context ctx.
func traceStream(ctx context.Context, cs grpc.ClientStream, leg Leg) grpc.ClientStream {
	stop := context.AfterFunc(ctx, func() { leg.End(status.FromContextError(ctx.Err()).Err(), nil) })
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
	f := codec.Room(m)
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
		return codec.Deliver(m, f)
	case errors.Is(err, io.EOF):
		s.end(nil)
	default:
		s.end(err)
	}
	return err
}

func (s *tracedStream) end(err error) {
	if s.stop() {
		s.leg.End(err, s.Trailer())
	}
}

// trace returns the stream of a client with a leg that sees its messages; nil if there is none.
// m is nil for a method that the profile does not describe.
func (d *Director) trace(m *method, name string, ss grpc.ServerStream) *tracedServer {
	if d.tracer == nil {
		return nil
	}
	in := sent(ss)
	ctx, leg := d.tracer.Begin(ss.Context(), LegInfo{Method: name, Client: true, Endless: m != nil && m.endless, Metadata: in})
	if leg == nil {
		return nil
	}
	return &tracedServer{ServerStream: ss, ctx: ctx, leg: leg, sent: in}
}

// tracedServer shows what passes on a stream of a client.
type tracedServer struct {
	grpc.ServerStream
	ctx     context.Context
	leg     Leg
	sent    metadata.MD // by the client; see sent
	trailer metadata.MD
}

func (s *tracedServer) Context() context.Context { return s.ctx }

func (s *tracedServer) RecvMsg(m any) error {
	f := codec.Room(m)
	if err := s.ServerStream.RecvMsg(f); err != nil {
		return err
	}
	s.leg.Request(f)
	return codec.Deliver(m, f)
}

func (s *tracedServer) SetHeader(md metadata.MD) error {
	s.leg.Header(md)
	return s.ServerStream.SetHeader(md)
}

func (s *tracedServer) SendHeader(md metadata.MD) error {
	s.leg.Header(md)
	return s.ServerStream.SendHeader(md)
}

func (s *tracedServer) SendMsg(m any) error {
	f, err := codec.FrameOf(m)
	if err != nil {
		return err
	}
	s.leg.Reply(f)
	return s.ServerStream.SendMsg(f)
}

func (s *tracedServer) SetTrailer(md metadata.MD) {
	s.trailer = md
	s.ServerStream.SetTrailer(md)
}
