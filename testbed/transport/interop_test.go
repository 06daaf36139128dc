package transport_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/mwitkow/grpc-proxy/proxy"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/transport"
)

// An end is a gRPC implementation: a server and a client.
type end struct {
	serve func(t testing.TB, l net.Listener, secure bool, register func(grpc.ServiceRegistrar))
	dial  func(t testing.TB, address net.Addr, secure bool) grpc.ClientConnInterface
}

var ends = map[string]end{"ours": {serveOurs, dialOurs}, "grpc-go": {serveGRPC, dialGRPC}}

func serveGRPC(t testing.TB, l net.Listener, secure bool, register func(grpc.ServiceRegistrar)) {
	creds := insecure.NewCredentials()
	if secure {
		creds = serverTLS()
	}
	s := grpc.NewServer(grpc.Creds(creds))
	register(s)
	go s.Serve(l)
	t.Cleanup(s.Stop)
}

func serveOurs(t testing.TB, l net.Listener, secure bool, register func(grpc.ServiceRegistrar)) {
	s := transport.NewServer(transport.ServerConfig{})
	register(s)
	go s.Serve(l, handshake(secure))
	t.Cleanup(s.Stop)
}

func handshake(secure bool) transport.Handshake {
	if !secure {
		return nil
	}
	return serverTLS().ServerHandshake
}

func dialGRPC(t testing.TB, address net.Addr, secure bool) grpc.ClientConnInterface {
	creds, target := insecure.NewCredentials(), "passthrough:///"+address.String()
	if secure {
		creds = clientTLS()
	}
	cc, err := grpc.NewClient(target, grpc.WithTransportCredentials(creds), grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, address.Network(), address.String())
	}))
	require.NoError(t, err)
	t.Cleanup(func() { cc.Close() })
	return cc
}

func dialOurs(t testing.TB, address net.Addr, secure bool) grpc.ClientConnInterface {
	cfg := transport.ClientConfig{Dial: func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, address.Network(), address.String())
	}}
	if secure {
		creds := clientTLS()
		cfg.Handshake = func(ctx context.Context, nc net.Conn) (net.Conn, credentials.AuthInfo, error) {
			return creds.ClientHandshake(ctx, certified, nc)
		}
	}
	c := transport.NewClient(cfg)
	t.Cleanup(func() { c.Close() })
	return codec.Conn{Caller: c}
}

// certified is the name in the certificate.
const certified = "example.com"

// certificate returns a certificate with its key, and the pool that a client needs to trust it.
var certificate = sync.OnceValues(func() (tls.Certificate, *x509.CertPool) {
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	trusted := x509.NewCertPool()
	trusted.AddCert(s.Certificate())
	return s.TLS.Certificates[0], trusted
})

func serverTLS() credentials.TransportCredentials {
	own, _ := certificate()
	return credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{own}})
}

func clientTLS() credentials.TransportCredentials {
	_, trusted := certificate()
	return credentials.NewClientTLSFromCert(trusted, certified)
}

func listen(t testing.TB) net.Listener {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s.sock"))
	require.NoError(t, err)
	return l
}

// cases are the cases of gRPC's interoperability suite that need no cloud, no cloud credentials,
// and no balancer (as the ORCA cases do, and pick_first_unary, for which the server returns its
// name).
var cases = map[string]func(context.Context, testgrpc.TestServiceClient){
	"empty_unary":                 func(ctx context.Context, c testgrpc.TestServiceClient) { interop.DoEmptyUnaryCall(ctx, c) },
	"large_unary":                 func(ctx context.Context, c testgrpc.TestServiceClient) { interop.DoLargeUnaryCall(ctx, c) },
	"client_streaming":            func(ctx context.Context, c testgrpc.TestServiceClient) { interop.DoClientStreaming(ctx, c) },
	"server_streaming":            func(ctx context.Context, c testgrpc.TestServiceClient) { interop.DoServerStreaming(ctx, c) },
	"ping_pong":                   func(ctx context.Context, c testgrpc.TestServiceClient) { interop.DoPingPong(ctx, c) },
	"empty_stream":                func(ctx context.Context, c testgrpc.TestServiceClient) { interop.DoEmptyStream(ctx, c) },
	"timeout_on_sleeping_server":  func(ctx context.Context, c testgrpc.TestServiceClient) { interop.DoTimeoutOnSleepingServer(ctx, c) },
	"cancel_after_begin":          func(ctx context.Context, c testgrpc.TestServiceClient) { interop.DoCancelAfterBegin(ctx, c) },
	"cancel_after_first_response": func(ctx context.Context, c testgrpc.TestServiceClient) { interop.DoCancelAfterFirstResponse(ctx, c) },
	"custom_metadata":             func(ctx context.Context, c testgrpc.TestServiceClient) { interop.DoCustomMetadata(ctx, c) },
	"status_code_and_message":     func(ctx context.Context, c testgrpc.TestServiceClient) { interop.DoStatusCodeAndMessage(ctx, c) },
	"special_status_message":      func(ctx context.Context, c testgrpc.TestServiceClient) { interop.DoSpecialStatusMessage(ctx, c) },
}

func suite(t *testing.T, cc grpc.ClientConnInterface) {
	within := func(t *testing.T, limit time.Duration) context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		t.Cleanup(cancel)
		return ctx
	}
	for name, do := range cases {
		t.Run(name, func(t *testing.T) { // a failure prints the reason and ends the process
			do(within(t, time.Minute), testgrpc.NewTestServiceClient(cc))
		})
	}
	t.Run("unimplemented_service", func(t *testing.T) {
		interop.DoUnimplementedService(within(t, time.Minute), testgrpc.NewUnimplementedServiceClient(cc))
	})
	real, ok := cc.(*grpc.ClientConn)
	if !ok {
		return // the rest is for only one client
	}
	t.Run("unimplemented_method", func(t *testing.T) { interop.DoUnimplementedMethod(within(t, time.Minute), real) })
	t.Run("rpc_soak", func(t *testing.T) {
		interop.DoSoakTest(within(t, 6*time.Minute), interop.SoakTestConfig{
			RequestSize: 271828, ResponseSize: 314159, NumWorkers: 8, Iterations: 200,
			PerIterationMaxAcceptableLatency: time.Minute, OverallTimeout: 5 * time.Minute, // the machine may be busy
			ChannelForTest: func() (*grpc.ClientConn, func()) { return real, func() {} },
		})
	})
}

// TestInterop runs gRPC's interoperability suite between our ends and grpc-go's.
func TestInterop(t *testing.T) {
	for _, secure := range []bool{false, true} {
		for server, s := range ends {
			for client, c := range ends {
				if server == "grpc-go" && client == server {
					continue // that is grpc-go's own business
				}
				name := client + " to " + server
				if secure {
					name += " with TLS"
				}
				t.Run(name, func(t *testing.T) {
					l := listen(t)
					s.serve(t, l, secure, func(r grpc.ServiceRegistrar) { testgrpc.RegisterTestServiceServer(r, interop.NewTestServer()) })
					suite(t, c.dial(t, l.Addr(), secure))
				})
			}
		}
	}
}

// TestInteropThroughAProxy runs the suite through a proxy of frames that is built from our ends.
func TestInteropThroughAProxy(t *testing.T) {
	back := listen(t)
	serveGRPC(t, back, false, func(r grpc.ServiceRegistrar) { testgrpc.RegisterTestServiceServer(r, interop.NewTestServer()) })
	cc := dialOurs(t, back.Addr(), false)
	s := transport.NewServer(transport.ServerConfig{Handler: proxy.TransparentHandler(func(ctx context.Context, _ string) (context.Context, grpc.ClientConnInterface, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		return metadata.NewOutgoingContext(ctx, md), cc, nil
	})})
	front := listen(t)
	go s.Serve(front, nil)
	t.Cleanup(s.Stop)
	suite(t, dialGRPC(t, front.Addr(), false))
}
