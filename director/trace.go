package director

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/criproxy/criproxy/codec"
)

// A Tracer sees the legs of calls. The client's leg, between client and director, has front names;
// a backend's leg, between director and backend, has back names and the version of the API that
// the backend speaks.
//
// The call waits while a method of a Tracer or a [Leg] runs, so each must return at once.
// Several goroutines may call the Leg of a stream at the same time.
type Tracer interface {
	// Begin is called when a leg begins. It returns nil in place of a Leg that it does not want
	// to see. The call goes on with the context that Begin returns, by which a Tracer can match
	// the legs of one call. The ctx of a backend's leg has the metadata for the backend, as
	// outgoing metadata.
	Begin(ctx context.Context, info LegInfo) (context.Context, Leg)
}

// LegInfo describes a leg that begins.
type LegInfo struct {
	Method  string // full name, in the version of the API that this leg speaks
	Backend string // name of the backend of a backend's leg; an unnamed primary has none
	Primary bool   // the backend is the primary
	Client  bool   // this is the client's leg
	Endless bool   // the call is an endless stream
	// Metadata is the metadata that the client sent, on the client's leg. A Tracer that keeps it
	// must copy it before Begin returns.
	Metadata metadata.MD
}

// A Leg sees the messages of one leg of a call. The frames belong to the call: a Leg that keeps
// one must take a reference of its own, or copy it, before the method returns.
type Leg interface {
	Request(f *codec.Frame) // a message towards the backend
	Header(md metadata.MD)  // the header of the answer
	Reply(f *codec.Frame)   // a message towards the client
	// End is the leg's last event. It gets the status, nil for OK, and the trailer.
	End(err error, trailer metadata.MD)
}

// trace returns the stream of a client with a leg that sees its messages, or nil if there is no
// Tracer or it declines the leg. m is nil for a method that the profile does not describe.
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

// tracedServer shows the messages of a client's stream to a leg.
type tracedServer struct {
	grpc.ServerStream
	ctx     context.Context
	leg     Leg
	sent    metadata.MD // metadata of the client
	trailer metadata.MD
}

func (s *tracedServer) Context() context.Context { return s.ctx }

func (s *tracedServer) RecvMsg(m any) error {
	f := codec.ReplyFrame(m)
	if err := s.ServerStream.RecvMsg(f); err != nil {
		return err
	}
	s.leg.Request(f)
	return codec.Decode(m, f)
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
