package testbed

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/testbed/host"
)

// maxMessage is longer than any message on a relay.
const maxMessage = 64 << 20

// NewRelay starts a relay in front of the socket of a runtime and returns the relay's socket. The relay forwards every
// call unchanged, through interceptors, for which a message is a *codec.Frame. It is closed when the test ends.
func NewRelay(t testing.TB, runtime string, interceptors ...grpc.StreamServerInterceptor) (socket string) {
	t.Helper()
	cc, err := grpc.NewClient("unix:"+runtime,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec.Raw), grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		t.Fatal(err)
	}
	dir, err := host.TempDir("relay.sock")
	if err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(dir, "relay.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(
		grpc.ForceServerCodecV2(codec.Raw), grpc.MaxRecvMsgSize(maxMessage), grpc.WaitForHandlers(true),
		grpc.ChainStreamInterceptor(interceptors...),
		grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error { return pass(cc, stream) }),
	)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		cc.Close()
		if err := errors.Join(<-ended, os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	return socket
}

// pass forwards one call.
func pass(cc *grpc.ClientConn, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	// Receive the first message before calling the runtime, which may answer before it reads.
	first := &codec.Frame{}
	if err := stream.RecvMsg(first); err != nil {
		return err
	}
	md, _ := metadata.FromIncomingContext(stream.Context())
	md = md.Copy()
	md.Delete("grpc-accept-encoding") // belongs to the connection, like the headers that grpc itself removes
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(stream.Context(), md))
	defer cancel()
	cs, err := cc.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		return err
	}
	go func() { // ends with the client's stream
		for f := first; ; {
			if cs.SendMsg(f) != nil {
				return // the runtime has answered
			}
			f = &codec.Frame{}
			if err := stream.RecvMsg(f); err != nil {
				cs.CloseSend()
				return
			}
		}
	}()
	if header, err := cs.Header(); err == nil && header != nil {
		if err := stream.SendHeader(header); err != nil {
			return err
		}
	}
	for {
		f := &codec.Frame{}
		err := cs.RecvMsg(f)
		if err == nil {
			err = stream.SendMsg(f)
		} else {
			stream.SetTrailer(cs.Trailer())
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// Slowness makes the runtime behind a relay slow. The zero value causes no delay. It is safe for concurrent use.
type Slowness struct {
	mu      sync.Mutex
	delay   time.Duration
	methods []string
}

// Set delays each further call whose method matches one of the patterns, such as "List*".
func (s *Slowness) Set(delay time.Duration, methods ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delay, s.methods = delay, methods
}

// of returns the delay of a method.
func (s *Slowness) of(method string) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.ContainsFunc(s.methods, func(pattern string) bool {
		matches, _ := path.Match(pattern, path.Base(method))
		return matches
	}) {
		return s.delay
	}
	return 0
}

// Intercept is the interceptor for a relay. Half of the delay passes before the call reaches the runtime and half before
// its answer is forwarded, so that the answer is older than its arrival.
func (s *Slowness) Intercept(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	delay := s.of(info.FullMethod)
	if delay == 0 {
		return handler(srv, stream)
	}
	if err := pause(stream.Context(), delay/2); err != nil {
		return err
	}
	return handler(srv, &slowStream{ServerStream: stream, delay: delay - delay/2})
}

// slowStream is a stream whose answer begins late.
type slowStream struct {
	grpc.ServerStream
	delay time.Duration
}

func (s *slowStream) SendHeader(md metadata.MD) error {
	if err := pause(s.Context(), s.delay); err != nil {
		return err
	}
	return s.ServerStream.SendHeader(md)
}

// pause waits for d. It returns an error if the client leaves first.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return status.FromContextError(context.Cause(ctx)).Err()
	case <-time.After(d):
		return nil
	}
}
