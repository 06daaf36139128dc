package director

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/profile"
	"github.com/criproxy/criproxy/internal/transport"
)

// A client is a call of a client. It shows a leg what passes, and converts messages between the client's version of the API
// and the newest, which is the only one inside the director. It is for one call: one goroutine may send while another
// receives. Only the goroutine of the handler uses request, call and trailer.
type client struct {
	grpc.ServerStream
	ctx     context.Context
	sent    metadata.MD          // metadata of the client; it belongs to the call, and nobody changes it
	leg     Leg                  // nil: there is no Tracer, or it does not want this call
	older   *profile.Translation // nil: the client has the newest version
	trailer metadata.MD

	request codec.Frame // of a unary call, with call in one allocation
	call    codec.Call
}

// client returns the call of a method, with a leg unless there is no Tracer or it declines the leg.
func (d *Director) client(m *method, name string, ss grpc.ServerStream) *client {
	c := &client{ServerStream: ss, ctx: ss.Context()}
	c.sent = transport.Metadata(c.ctx)
	if d.tracer != nil {
		c.ctx, c.leg = d.tracer.Begin(c.ctx, LegInfo{Method: name, Client: true, Endless: m != nil && m.endless, Metadata: c.sent})
	}
	return c
}

// Context returns the context of the call.
func (c *client) Context() context.Context { return c.ctx }

// RecvMsg receives a message of the client.
func (c *client) RecvMsg(m any) error {
	f := codec.ReplyFrame(m)
	if err := c.ServerStream.RecvMsg(f); err != nil {
		return err
	}
	if c.leg != nil {
		c.leg.Request(f)
	}
	if c.older != nil {
		var err error
		if f, err = c.older.Request(f); err != nil {
			return internal(c.older.Method, err)
		}
	}
	return codec.Decode(m, f)
}

// SendMsg sends the client a message.
func (c *client) SendMsg(m any) error {
	f, err := codec.FrameOf(m)
	if err != nil {
		return err
	}
	if c.older != nil {
		if f, err = c.older.Reply(f.Ref()); err != nil {
			return internal(c.older.Method, err)
		}
		defer f.Free()
	}
	if c.leg != nil {
		c.leg.Reply(f)
	}
	return c.ServerStream.SendMsg(f)
}

// SetHeader sets the header.
func (c *client) SetHeader(md metadata.MD) error { return c.head(c.ServerStream.SetHeader, md) }

// SendHeader sends the header at once.
func (c *client) SendHeader(md metadata.MD) error { return c.head(c.ServerStream.SendHeader, md) }

// head sets or sends a header. grpc-go's own server refuses a header with a byte that is not printable; it gets the
// rest of it: what a backend says about a call must not change the call.
func (c *client) head(set func(metadata.MD) error, md metadata.MD) error {
	md = transport.EndToEnd(md)
	if c.leg != nil {
		c.leg.Header(md)
	}
	err := set(md)
	if err != nil && status.Code(err) == codes.Internal {
		if some := transport.Printable(md, nil); len(some) < len(md) {
			return set(some)
		}
	}
	return err
}

// SetTrailer sets the trailer.
func (c *client) SetTrailer(md metadata.MD) {
	c.trailer = transport.EndToEnd(md)
	c.ServerStream.SetTrailer(c.trailer)
}

// receive receives the first message of the client.
func (c *client) receive(request *codec.Frame) error {
	err := c.RecvMsg(request)
	if errors.Is(err, io.EOF) {
		return errNoRequest
	}
	return err
}

var errNoRequest = status.Error(codes.Internal, "criproxy: the client ended the call without sending a request")

// outgoing returns a context that passes on in, the metadata that the client sent, without the keys
// that describe the client's connection. Most clients send only those.
func outgoing(ctx context.Context, in metadata.MD) context.Context {
	var on metadata.MD
	for key, values := range in {
		switch key {
		case ":authority", "content-type", "user-agent":
			continue // of the client's connection, not of the call
		}
		if transport.Hop(key) {
			continue
		}
		if on == nil {
			on = make(metadata.MD, len(in))
		}
		on[key] = values
	}
	if on == nil {
		if _, other := metadata.FromOutgoingContext(ctx); !other {
			return ctx
		}
	}
	return metadata.NewOutgoingContext(ctx, on)
}
