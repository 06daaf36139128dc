package transport_test

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/testing/testkit"
	"github.com/criproxy/criproxy/internal/transport"
)

// patience is how long a test waits for an event that should happen at once.
const patience = 20 * time.Second

// An end is a gRPC implementation: a server with one handler, and a client.
type end struct {
	serve func(testing.TB, net.Listener, grpc.StreamHandler)
	dial  func(testing.TB, func(context.Context) (net.Conn, error)) grpc.ClientConnInterface
}

var (
	ours   = end{serveOurs, dialOurs}
	grpcGo = end{serveGRPC, dialGRPC}
)

func serveOurs(t testing.TB, l net.Listener, h grpc.StreamHandler) {
	serve(t, l, transport.ServerConfig{Handler: h, Pings: anyPings})
}

// serve serves with cfg, until the test ends.
func serve(t testing.TB, l net.Listener, cfg transport.ServerConfig) *transport.Server {
	s := transport.NewServer(cfg)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l, nil) }()
	t.Cleanup(func() {
		s.Stop()
		require.NoError(t, <-done)
	})
	return s
}

var anyPings = keepalive.EnforcementPolicy{MinTime: 1, PermitWithoutStream: true}

func dialOurs(t testing.TB, dial func(context.Context) (net.Conn, error)) grpc.ClientConnInterface {
	return newClient(t, transport.ClientConfig{Dial: dial})
}

// client is a Client with the methods that generated code calls.
type client struct {
	*transport.Client
	codec.Conn
}

func newClient(t testing.TB, cfg transport.ClientConfig) *client {
	c := transport.NewClient(cfg)
	t.Cleanup(func() { c.Close() })
	return &client{c, codec.Conn{Caller: c}}
}

func serveGRPC(t testing.TB, l net.Listener, h grpc.StreamHandler) {
	s := grpc.NewServer(grpc.ForceServerCodecV2(codec.Raw), grpc.UnknownServiceHandler(h), grpc.NumStreamWorkers(32),
		grpc.MaxRecvMsgSize(transport.DefaultMaxMessage), grpc.InitialWindowSize(1<<20), grpc.InitialConnWindowSize(4<<20),
		grpc.ReadBufferSize(4<<10), grpc.KeepaliveEnforcementPolicy(anyPings))
	go s.Serve(l)
	t.Cleanup(s.Stop)
}

func dialGRPC(t testing.TB, dial func(context.Context) (net.Conn, error)) grpc.ClientConnInterface {
	cc, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) }),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec.Raw), grpc.MaxCallRecvMsgSize(transport.DefaultMaxMessage)),
		grpc.WithDisableRetry(), grpc.WithIdleTimeout(0), grpc.WithInitialWindowSize(1<<20), grpc.WithInitialConnWindowSize(4<<20))
	require.NoError(t, err)
	t.Cleanup(func() { cc.Close() })
	return cc
}

// listen returns a listener on a unix socket.
func listen(t testing.TB) net.Listener {
	l, err := net.Listen("unix", filepath.Join(testkit.SocketDir(t), "s.sock"))
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// dialer returns a function that connects to a listener.
func dialer(l net.Listener) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, l.Addr().Network(), l.Addr().String())
	}
}

// A client that gives up at its deadline cancels the call, and grpc-go's server does so too: such calls used to be Canceled
// or DeadlineExceeded, as it happened.
func TestACallThatIsCanceledAtItsDeadlineTimedOut(t *testing.T) {
	for name, c := range map[string]struct {
		left   time.Duration // until the deadline; zero: there is none
		cancel bool
		err    error
		want   codes.Code
	}{
		"at the deadline":            {-time.Second, true, status.FromContextError(context.Canceled).Err(), codes.DeadlineExceeded},
		"a moment before":            {10 * time.Millisecond, true, status.FromContextError(context.Canceled).Err(), codes.DeadlineExceeded},
		"long before":                {time.Hour, true, status.FromContextError(context.Canceled).Err(), codes.Canceled},
		"without a deadline":         {0, true, status.FromContextError(context.Canceled).Err(), codes.Canceled},
		"the backend canceled it":    {time.Hour, false, status.Error(codes.Canceled, "so"), codes.Canceled},
		"the backend said the cause": {-time.Second, true, status.Error(codes.NotFound, "so"), codes.NotFound},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		if c.cancel {
			cancel()
		}
		if c.left != 0 {
			var end context.CancelFunc
			ctx, end = context.WithDeadline(ctx, time.Now().Add(c.left)) // a context that has ended keeps its error
			defer end()
		}
		assert.Equal(t, c.want, status.Code(transport.TimedOut(ctx, c.err)), name)
		cancel()
	}
}
