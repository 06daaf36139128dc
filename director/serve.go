package director

import (
	"context"
	"errors"
	"io"

	"github.com/mwitkow/grpc-proxy/proxy"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip" // clients may compress
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/recovery"
)

// Handler returns the handler that puts the director behind a server. The server needs
// [codec.Raw]. It must have no registered service of the API, or methods that are newer than
// that service would be refused:
//
//	grpc.NewServer(grpc.ForceServerCodecV2(codec.Raw), grpc.UnknownServiceHandler(d.Handler()))
func (d *Director) Handler() grpc.StreamHandler {
	transparent := proxy.TransparentHandler(func(ctx context.Context, _ string) (context.Context, grpc.ClientConnInterface, error) {
		in, _ := metadata.FromIncomingContext(ctx)
		return outgoing(ctx, in), early{d.front, d.panics()}, nil
	})
	handle := func(m *method, name string, ss grpc.ServerStream) error {
		switch {
		case m == nil || m.ClientStreams:
			return transparent(nil, &headerOnce{ss, d.panics()})
		case m.ServerStreams:
			return serveStream(d.front, name, ss)
		default:
			return serveUnary(d.front, name, ss)
		}
	}
	return func(_ any, ss grpc.ServerStream) (err error) {
		name, ok := grpc.MethodFromServerStream(ss)
		if !ok {
			return status.Error(codes.Internal, "criproxy: a call without a method; is this a grpc-go server?")
		}
		panics := d.panics()
		defer panics.To(&err, name)
		m := d.method(name)
		traced := d.trace(m, name, ss)
		if traced == nil {
			return handle(m, name, ss)
		}
		err = panics.Do(name, func() error { return handle(m, name, traced) })
		traced.leg.End(err, traced.trailer)
		return err
	}
}

// panics returns the hook for panics, that of the latest configuration.
func (d *Director) panics() recovery.Hook { return d.table.Load().panics }

// method returns what becomes of the method that a client calls name, in any version; nil if
// the profile does not describe it.
func (d *Director) method(name string) *method {
	t := d.table.Load()
	return t.methods[t.versions.newest(name)]
}

// serveUnary reads, invokes and answers in the goroutine it is called in.
func serveUnary(conn grpc.ClientConnInterface, name string, ss grpc.ServerStream) error {
	var request, reply codec.Frame
	if err := receive(ss, &request); err != nil {
		return err
	}
	defer request.Free()
	var header, trailer metadata.MD
	err := conn.Invoke(outgoing(ss.Context(), sent(ss)), name, &request, &reply, grpc.Header(&header), grpc.Trailer(&trailer))
	// Whether or not it failed: a header may come with a failure as well.
	if saysMore(header) {
		if err := ss.SetHeader(header); err != nil {
			return err
		}
	}
	ss.SetTrailer(trailer)
	if err != nil {
		return err
	}
	defer reply.Free()
	return ss.SendMsg(&reply)
}

// serveStream passes one request to conn and what streams back to the client.
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
	// At once, not with the first message, which may be long in coming.
	if header, err := cs.Header(); err == nil && header != nil {
		if err := ss.SendHeader(header); err != nil {
			return err
		}
	}
	for {
		var reply codec.Frame
		if err := cs.RecvMsg(&reply); err != nil {
			ss.SetTrailer(cs.Trailer())
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

// saysMore reports whether a header holds more than the content type, which the server sets
// by itself.
func saysMore(header metadata.MD) bool {
	_, usual := header["content-type"]
	return len(header) > 1 || len(header) == 1 && !usual
}

func receive(ss grpc.ServerStream, request *codec.Frame) error {
	err := ss.RecvMsg(request)
	if errors.Is(err, io.EOF) {
		return status.Error(codes.Internal, "criproxy: the call ended before its request came")
	}
	return err
}

// sent returns the metadata that the client sent, a copy that is the caller's. It is asked
// once a call.
func sent(ss grpc.ServerStream) metadata.MD {
	if t, ok := ss.(*tracedServer); ok {
		return t.sent
	}
	md, _ := metadata.FromIncomingContext(ss.Context())
	return md
}

// outgoing returns a context that sends on in, the metadata that the client sent,
// which it takes over.
func outgoing(ctx context.Context, in metadata.MD) context.Context {
	for key := range in {
		switch key {
		case ":authority", "content-type", "user-agent", "grpc-accept-encoding":
			delete(in, key) // of the connection, not of the call
		}
	}
	return metadata.NewOutgoingContext(ctx, in)
}

// early makes up for two things that grpc-proxy's handler leaves out: the header
// reaches the client when it is there, not with the first message, and also
// when the call fails before there is one.
type early struct {
	grpc.ClientConnInterface
	panics recovery.Hook
}

func (c early) NewStream(ctx context.Context, desc *grpc.StreamDesc, name string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	ctx, fail := context.WithCancelCause(ctx) // ends with the context of the server's stream
	cs, err := c.ClientConnInterface.NewStream(ctx, desc, name, opts...)
	if err != nil {
		fail(nil)
		return nil, err
	}
	ss, _ := ctx.Value(serverStreamKey{}).(*headerOnce)
	e := &earlyStream{ClientStream: cs, ctx: ctx, fail: fail, sent: make(chan struct{}), name: name, panics: c.panics}
	go func() { // ends with the stream: Header returns when there is a header or an end
		defer close(e.sent)
		err := c.panics.Run(name, func() {
			if md, err := cs.Header(); err == nil && md != nil && ss != nil {
				_ = ss.ServerStream.SendHeader(md) // fails when the client has gone, which it will notice
			}
		})
		e.end(err)
	}()
	return e, nil
}

type earlyStream struct {
	grpc.ClientStream
	name   string
	panics recovery.Hook
	sent   chan struct{}   // closed when the client has the header, or will not get one
	ctx    context.Context // ends with a panic
	fail   context.CancelCauseFunc
}

// end ends the stream if err is a panic: RecvMsg tells, in whichever goroutine it was.
func (s *earlyStream) end(err error) {
	var p *recovery.Panic
	if errors.As(err, &p) {
		s.fail(p)
	}
}

// SendMsg is called in a goroutine of grpc-proxy's, as RecvMsg is.
func (s *earlyStream) SendMsg(m any) (err error) {
	defer func() { s.end(err) }()
	defer s.panics.To(&err, s.name)
	return s.ClientStream.SendMsg(m)
}

// CloseSend is as SendMsg.
func (s *earlyStream) CloseSend() (err error) {
	defer func() { s.end(err) }()
	defer s.panics.To(&err, s.name)
	return s.ClientStream.CloseSend()
}

// RecvMsg waits with messages, and with the end of the call, until the header
// is sent.
func (s *earlyStream) RecvMsg(m any) (err error) {
	defer s.panics.To(&err, s.name)
	err = s.ClientStream.RecvMsg(m)
	<-s.sent
	var p *recovery.Panic
	if errors.As(context.Cause(s.ctx), &p) {
		return p
	}
	return err
}

// Header is as RecvMsg.
func (s *earlyStream) Header() (md metadata.MD, err error) {
	defer s.panics.To(&err, s.name)
	return s.ClientStream.Header()
}

// headerOnce is a server stream whose header early sends. Its context leads there.
type headerOnce struct {
	grpc.ServerStream
	panics recovery.Hook
}

type serverStreamKey struct{}

func (*headerOnce) SendHeader(metadata.MD) error { return nil }

// RecvMsg is called in a goroutine of grpc-proxy's, as SendMsg is.
func (s *headerOnce) RecvMsg(m any) (err error) {
	defer s.panics.To(&err, s.method())
	return s.ServerStream.RecvMsg(m)
}

func (s *headerOnce) SendMsg(m any) (err error) {
	defer s.panics.To(&err, s.method())
	return s.ServerStream.SendMsg(m)
}

func (s *headerOnce) method() string {
	name, _ := grpc.MethodFromServerStream(s.ServerStream)
	return name
}

func (s *headerOnce) Context() context.Context {
	return context.WithValue(s.ServerStream.Context(), serverStreamKey{}, s)
}
