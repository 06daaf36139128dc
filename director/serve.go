package director

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/recovery"
	"github.com/criproxy/criproxy/internal/transport"
)

// Handler returns a handler with which a gRPC server passes calls to the director. The server must
// use [codec.Raw]. No service of the API may be registered on it: it would refuse methods that are
// newer than the registration.
//
//	grpc.NewServer(grpc.ForceServerCodecV2(codec.Raw), grpc.UnknownServiceHandler(d.Handler()))
func (d *Director) Handler() grpc.StreamHandler {
	return func(_ any, ss grpc.ServerStream) (err error) {
		name, ok := grpc.MethodFromServerStream(ss)
		if !ok {
			return status.Error(codes.Internal, "criproxy: the server does not say which method was called; use the handler with a grpc-go server")
		}
		panics := d.panics()
		defer panics.To(&err, name)
		m := d.method(name)
		c := d.client(m, name, ss)
		if c.leg == nil {
			return transport.TimedOut(ss.Context(), d.serve(m, name, c))
		}
		err = transport.TimedOut(ss.Context(), panics.Do(name, func() error { return d.serve(m, name, c) }))
		c.leg.End(err, c.trailer)
		return err
	}
}

// serve serves a call of a client. m is nil for a method that the profile does not describe.
//
// A method that the profile describes is served by its kind: a unary call in one goroutine, a stream of replies by way of one
// pump, a stream of requests by two. All others pass both ways, because only the client and the backend know their kind.
func (d *Director) serve(m *method, name string, c *client) error {
	t := d.table.Load()
	if c.older = t.versions.ToNewest(name); c.older != nil {
		name = c.older.Method
	}
	switch {
	case m == nil || m.ClientStreams:
		if t.pass != nil && c.older == nil { // it calls the method by the client's name
			return t.pass(outgoing(c.ctx, c.sent), front{codec.Conn{Caller: d.front}, d}, c)
		}
		return serveBothWays(d.front, name, c, m != nil, d.panics())
	case m.ServerStreams:
		return serveStream(d.front, name, c)
	default:
		return serveUnary(d.front, name, c)
	}
}

// panics returns the hook for panics of the latest configuration.
func (d *Director) panics() recovery.Hook { return d.table.Load().panics }

// method returns the method that a client calls name, in any version of the API. It is nil if
// the profile does not describe the method.
func (d *Director) method(name string) *method {
	t := d.table.Load()
	if older := t.versions.ToNewest(name); older != nil {
		name = older.Method
	}
	return t.methods[name]
}

// serveUnary reads, invokes and answers in the goroutine of its caller.
func serveUnary(conn codec.Caller, name string, c *client) error {
	request, call := &c.request, &c.call
	if err := c.receive(request); err != nil {
		return err
	}
	defer request.Free()
	call.Method, call.Request = name, request
	err := conn.Call(outgoing(c.ctx, c.sent), call)
	// A failed call may have a header as well.
	if transport.SaysMore(call.Header) {
		if err := c.SetHeader(call.Header); err != nil {
			return err
		}
	}
	c.SetTrailer(call.Trailer)
	if err != nil {
		return err
	}
	defer call.Reply.Free()
	transport.Unary(c.ctx)
	return c.SendMsg(call.Reply)
}

// serveStream passes one request to conn, and the messages from conn to the client.
func serveStream(conn codec.Caller, name string, c *client) error {
	var request codec.Frame
	if err := c.receive(&request); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(outgoing(c.ctx, c.sent))
	defer cancel()
	s, err := conn.Open(ctx, &grpc.StreamDesc{ServerStreams: true}, name, &request)
	if err != nil {
		return err
	}
	return passReplies(s, c)
}

// serveBothWays passes messages from the client to conn, and at the same time from conn to the
// client. If decides is set, the first message of the client decides who gets the call.
func serveBothWays(conn codec.Caller, name string, c *client, decides bool, panics recovery.Hook) error {
	ctx, end := context.WithCancelCause(outgoing(c.ctx, c.sent))
	defer end(nil)
	var first *codec.Frame
	if decides {
		first = &codec.Frame{}
		if err := c.RecvMsg(first); errors.Is(err, io.EOF) {
			first = nil
		} else if err != nil {
			return err
		}
	}
	s, err := conn.Open(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, name, first)
	if err != nil {
		return err
	}
	go func() { // ends with the call of the client
		if err := panics.Do(name, func() error { return passRequests(c, s) }); err != nil {
			end(err)
		}
	}()
	err = passReplies(s, c)
	if cause := context.Cause(ctx); err != nil && cause != nil && c.ctx.Err() == nil {
		return cause
	}
	return err
}

// passRequests passes what the client sends to a backend, until the client sends no more or the backend has ended the call.
func passRequests(c *client, s codec.Stream) error {
	for {
		var request codec.Frame
		err := c.RecvMsg(&request)
		if errors.Is(err, io.EOF) {
			return s.CloseSend()
		}
		if err != nil {
			return err
		}
		err = s.Send(&request)
		request.Free()
		if errors.Is(err, io.EOF) {
			return nil // the backend has ended the call; Recv returns why
		}
		if err != nil {
			return err
		}
	}
}

// passReplies passes what a backend sends to the client, until the backend ends the call.
func passReplies(s codec.Stream, c *client) error {
	// At once, not with the first message, which may come much later.
	if header, err := s.Header(); err == nil && header != nil {
		if err := c.SendHeader(header); err != nil {
			return err
		}
	}
	for {
		reply, err := s.Recv()
		if err != nil {
			c.SetTrailer(s.Trailer())
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		err = c.SendMsg(reply)
		reply.Free()
		if err != nil {
			return err
		}
	}
}
