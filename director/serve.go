package director

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip" // clients may compress
	"google.golang.org/grpc/metadata"
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
	handle := func(m *method, name string, ss grpc.ServerStream) error {
		older := d.table.Load().versions.ToNewest(name)
		if older != nil {
			name, ss = older.Method, &olderClient{ss, older}
		}
		switch {
		case m == nil && d.table.Load().elsewhere(name):
			return serveUnary(d.front, name, ss)
		case m == nil || m.ClientStreams:
			if pass := d.table.Load().pass; pass != nil && older == nil { // it calls the method by the client's name
				return pass(outgoing(ss.Context(), sent(ss)), d.front, edge{ss})
			}
			return serveBothWays(d.front, name, ss, d.panics())
		case m.ServerStreams:
			return serveStream(d.front, name, ss)
		default:
			return serveUnary(d.front, name, ss)
		}
	}
	return func(_ any, ss grpc.ServerStream) (err error) {
		name, ok := grpc.MethodFromServerStream(ss)
		if !ok {
			return status.Error(codes.Internal, "criproxy: the server does not say which method was called; use the handler with a grpc-go server")
		}
		panics := d.panics()
		defer panics.To(&err, name)
		m := d.method(name)
		traced := d.trace(m, name, ss)
		if traced == nil {
			return transport.TimedOut(ss.Context(), handle(m, name, ss))
		}
		err = transport.TimedOut(ss.Context(), panics.Do(name, func() error { return handle(m, name, traced) }))
		traced.leg.End(err, traced.trailer)
		return err
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
func serveUnary(conn grpc.ClientConnInterface, name string, ss grpc.ServerStream) error {
	var one struct { // one allocation
		request codec.Frame
		call    codec.Call
	}
	if err := receive(ss, &one.request); err != nil {
		return err
	}
	defer one.request.Free()
	call := &one.call
	call.Method, call.Request = name, &one.request
	err := call.On(outgoing(ss.Context(), sent(ss)), conn)
	// A failed call may have a header as well.
	if saysMore(call.Header) {
		if err := convey(ss.SetHeader, call.Header); err != nil {
			return err
		}
	}
	ss.SetTrailer(endToEnd(call.Trailer))
	if err != nil {
		return err
	}
	defer call.Reply.Free()
	transport.Unary(ss.Context())
	return ss.SendMsg(call.Reply)
}

// serveStream passes one request to conn, and the messages from conn to the client.
func serveStream(conn grpc.ClientConnInterface, name string, ss grpc.ServerStream) error {
	var request codec.Frame
	if err := receive(ss, &request); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(outgoing(ss.Context(), sent(ss)))
	defer cancel()
	cs, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, name)
	if err != nil {
		return err
	}
	if err := cs.SendMsg(&request); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := cs.CloseSend(); err != nil {
		return err
	}
	return passReplies(cs, ss)
}

// serveBothWays passes messages from the client to conn, and at the same time from conn to the
// client.
func serveBothWays(conn grpc.ClientConnInterface, name string, ss grpc.ServerStream, panics recovery.Hook) error {
	ctx, end := context.WithCancelCause(outgoing(ss.Context(), sent(ss)))
	defer end(nil)
	cs, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, name)
	if err != nil {
		return err
	}
	go func() { // ends with the call of the client
		if err := panics.Do(name, func() error { return passRequests(ss, cs) }); err != nil {
			end(err)
		}
	}()
	err = passReplies(cs, ss)
	if cause := context.Cause(ctx); err != nil && cause != nil && ss.Context().Err() == nil {
		return cause
	}
	return err
}

// passRequests passes what the client sends to a backend.
func passRequests(ss grpc.ServerStream, cs grpc.ClientStream) error {
	for {
		var request codec.Frame
		err := ss.RecvMsg(&request)
		if errors.Is(err, io.EOF) {
			return cs.CloseSend()
		}
		if err != nil {
			return err
		}
		err = cs.SendMsg(&request)
		request.Free()
		if errors.Is(err, io.EOF) {
			return nil // the backend has ended the call; RecvMsg returns why
		}
		if err != nil {
			return err
		}
	}
}

// passReplies passes what a backend sends to the client, until the backend ends the call.
func passReplies(cs grpc.ClientStream, ss grpc.ServerStream) error {
	// At once, not with the first message, which may come much later.
	if header, err := cs.Header(); err == nil && header != nil {
		if err := convey(ss.SendHeader, header); err != nil {
			return err
		}
	}
	for {
		var reply codec.Frame
		if err := cs.RecvMsg(&reply); err != nil {
			ss.SetTrailer(endToEnd(cs.Trailer()))
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		err := ss.SendMsg(&reply)
		reply.Free()
		if err != nil {
			return err
		}
	}
}

// saysMore reports whether a header holds more than the content type, which the server sets in any
// case.
func saysMore(header metadata.MD) bool {
	_, usual := header["content-type"]
	return len(header) > 1 || len(header) == 1 && !usual
}

// endToEnd returns md without the fields that describe the backend's connection. It returns md itself if there are none.
func endToEnd(md metadata.MD) metadata.MD {
	for key := range md {
		if !transport.Hop(key) {
			continue
		}
		on := make(metadata.MD, len(md))
		for key, values := range md {
			if !transport.Hop(key) {
				on[key] = values
			}
		}
		return on
	}
	return md
}

// convey sets or sends a header. grpc-go's own server refuses a header with a byte that is not printable; it gets the
// rest of it: what a backend says about a call must not change the call.
func convey(set func(metadata.MD) error, header metadata.MD) error {
	header = endToEnd(header)
	err := set(header)
	if err != nil && status.Code(err) == codes.Internal {
		if some := transport.Printable(header, nil); len(some) < len(header) {
			return set(some)
		}
	}
	return err
}

// edge is a client's stream for a handler that is not ours.
type edge struct{ grpc.ServerStream }

func (e edge) SetHeader(md metadata.MD) error  { return convey(e.ServerStream.SetHeader, md) }
func (e edge) SendHeader(md metadata.MD) error { return convey(e.ServerStream.SendHeader, md) }
func (e edge) SetTrailer(md metadata.MD)       { e.ServerStream.SetTrailer(endToEnd(md)) }

func receive(ss grpc.ServerStream, request *codec.Frame) error {
	err := ss.RecvMsg(request)
	if errors.Is(err, io.EOF) {
		return errNoRequest
	}
	return err
}

var errNoRequest = status.Error(codes.Internal, "criproxy: the client ended the call without sending a request")

// sent returns the metadata that the client sent. It belongs to the call: the caller must not
// change it.
func sent(ss grpc.ServerStream) metadata.MD {
	if t, ok := ss.(*tracedServer); ok {
		return t.sent
	}
	if md, ok := transport.Sent(ss.Context()); ok {
		return md
	}
	md, _ := metadata.FromIncomingContext(ss.Context())
	return md
}

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
