package server

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// healthProfile is about an API that is not CRI.
const healthProfile = `versions: [{package: grpc.health.v1}]
names: {service: {front: "{backend}/{name}", bare: anyone}}
fields: {HealthCheckRequest.service: service}
`

// serveHealth serves an API that is not CRI, and tells about it by reflection.
func serveHealth(t testing.TB, l net.Listener, service string, opts ...grpc.ServerOption) {
	t.Helper()
	h := health.NewServer()
	h.SetServingStatus(service, healthpb.HealthCheckResponse_SERVING)
	s := grpc.NewServer(opts...)
	healthpb.RegisterHealthServer(s, h)
	reflection.Register(s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l) // until Stop
	}()
	t.Cleanup(func() {
		s.Stop()
		<-done
	})
}

// serveHealthAt is serveHealth at the path of a socket.
func serveHealthAt(t testing.TB, path, service string) {
	t.Helper()
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	serveHealth(t, l, service)
}

// startProxy runs a proxy until the test ends.
func startProxy(t testing.TB, cfg *config.Config) *Proxy {
	t.Helper()
	require.NoError(t, Check(cfg))
	p, err := New(cfg, Options{})
	require.NoError(t, err)
	l, err := net.Listen("unix", cfg.Listen)
	require.NoError(t, err)
	return runUntilEnd(t, p, l)
}

// runUntilEnd runs a proxy until the test ends, on the sockets that it has if there is no other.
func runUntilEnd(t testing.TB, p *Proxy, l ...net.Listener) *Proxy {
	t.Helper()
	for _, one := range l {
		p.UseListener(one)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-ended)
	})
	return p
}

// dial connects to a socket.
func connectTo(t testing.TB, target string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	if opts == nil {
		opts = []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	}
	cc, err := grpc.NewClient(target, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { cc.Close() }) // the error would change nothing
	return cc
}

// Without a gate only a probe shows that a backend that was gone answers again (issue 43).
func TestCheckSaysThatAProfileNamesNoMethodToAsk(t *testing.T) {
	t.Parallel()
	const known = healthProfile + "known: {replies: [{method: Check}]}\n"
	for profile, want := range map[string][]string{healthProfile: {noKnown}, known: {noProbe}, known + "probe: Health/Check\n": nil} {
		dir := testkit.SocketDir(t)
		serveHealthAt(t, filepath.Join(dir, "one.sock"), "one")
		c := healthConfig(t, dir, config.Backend{Address: filepath.Join(dir, "one.sock")}, config.Backend{Name: "two", Address: filepath.Join(dir, "two.sock")})
		c.Proto = []string{"reflection"}
		require.NoError(t, os.WriteFile(c.Profile, []byte(profile), 0o600))
		require.NoError(t, Check(c))
		r, err := Examine(t.Context(), c)
		require.NoError(t, err)
		assert.Equal(t, want, r.Notes, profile)
	}
}

func TestAnotherAPIIsServedByProfileAndReflection(t *testing.T) {
	t.Parallel()
	dir := testkit.SocketDir(t)
	for _, service := range []string{"one", "two"} {
		serveHealthAt(t, filepath.Join(dir, service+".sock"), service)
	}
	cfg := healthConfig(t, dir, config.Backend{Address: filepath.Join(dir, "one.sock")}, config.Backend{Name: "two", Address: filepath.Join(dir, "two.sock")})
	cfg.Proto = []string{"reflection"}
	c := *cfg
	c.DataPath = config.OwnPath // the other one has a warning
	require.NoError(t, Check(&c))
	r, err := Examine(t.Context(), &c)
	require.NoError(t, err)
	assert.Empty(t, r.Errors)
	assert.Empty(t, r.Warnings, "what kubelet makes of names is of no interest here")
	assert.Equal(t, []string{noKnown}, r.Notes)
	assert.Contains(t, r.Methods, methodReport{Method: "/grpc.health.v1.Health/Check", Goes: "to the owner of service, else to the primary",
		Request: map[string]string{"service": "service"}, Reply: map[string]string{}})

	startProxy(t, cfg)
	client := healthpb.NewHealthClient(connectTo(t, "unix:"+cfg.Listen))
	for service, want := range map[string]codes.Code{"one": codes.OK, "two/two": codes.OK, "two": codes.NotFound, "two/one": codes.NotFound} {
		_, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service}, grpc.WaitForReady(true))
		assert.Equal(t, want, status.Code(err), service)
	}
}

// A backend without known had two texts for one cause: that of its condition, and that of the calls that it failed (issue
// 43, item 14).
func TestABackendWithoutKnownIsGoneInOneWording(t *testing.T) {
	dir := testkit.SocketDir(t)
	one, two := filepath.Join(dir, "one.sock"), filepath.Join(dir, "two.sock")
	serveHealthAt(t, one, "one")
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: two, Net: "unix"})
	require.NoError(t, err)
	left.SetUnlinkOnClose(false) // its file stays
	require.NoError(t, left.Close())
	cfg := healthConfig(t, dir, config.Backend{Address: one}, config.Backend{Name: "two", Address: two})
	cfg.Proto = []string{"reflection"}
	p := startProxy(t, cfg)
	client := healthpb.NewHealthClient(connectTo(t, "unix:"+cfg.Listen))
	_, err = client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "two/two"})
	want := "cannot be reached at " + two + ": connect: connection refused"
	assert.Equal(t, "criproxy: backend two "+want, status.Convert(err).Message())
	testkit.Eventually(t, "the backend is gone", func() bool { return p.Report(t.Context()).Backends[1].State == capture.Gone })
	r := p.Report(t.Context()).Backends[1]
	assert.Equal(t, want, r.Error)
	require.Len(t, r.Outages, 1)
	assert.Equal(t, want, r.Outages[0].Error)
}
