package director

import (
	"context"

	"google.golang.org/grpc/metadata"

	"github.com/criproxy/criproxy/codec"
)

// A Tracer sees the legs of calls. The client's leg, between client and director, has front names;
// a backend's leg, between director and backend, has back names and the version of the API that
// the backend has.
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

// LegInfo describes a leg that begins. A Tracer may keep it, but for its Metadata. A call has one leg of the client, and one of a
// backend each time that the director asks one: none if it refuses the call, or if the cache answers at once.
type LegInfo struct {
	Method  string // full name, in the version of the API that this leg has
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
