package grpcgo

import (
	"bytes"
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/transport"
)

func TestAGoAwayIsFoundHoweverTheBytesAreSplit(t *testing.T) {
	var out bytes.Buffer
	framer := http2.NewFramer(&out, nil)
	require.NoError(t, framer.WriteSettings())
	require.NoError(t, framer.WriteData(1, false, []byte("a message that says graceful_stop")))
	before := out.Len()
	require.NoError(t, framer.WriteGoAway(1<<31-1, http2.ErrCodeNo, []byte("graceful_stop")))
	for _, step := range []int{1, 2, 7, 9, 10, 100} {
		var f frames
		for i := 0; i < before; i += step {
			require.False(t, f.endsWith(out.Bytes()[i:min(i+step, before)]), "%d", step)
		}
		assert.True(t, f.endsWith(out.Bytes()[before:]), "%d", step)
	}
}

// A server is that of a data path.
type server interface {
	Serve(l net.Listener, shake transport.Handshake) error
	Drain(ctx context.Context, notified func())
	Trim(of net.Listener, most int, silent func(net.Conn) bool) transport.Crowd
	Stop()
}

// onBothPaths runs a test with the server of each data path.
func onBothPaths(t *testing.T, test func(t *testing.T, newServer func(transport.ServerConfig) server)) {
	t.Run("own", func(t *testing.T) {
		test(t, func(cfg transport.ServerConfig) server { return transport.NewServer(cfg) })
	})
	t.Run("grpc", func(t *testing.T) {
		test(t, func(cfg transport.ServerConfig) server { return NewServer(cfg) })
	})
}

// serve serves with s until the test ends, and returns a client and the socket's address.
func serve(t *testing.T, s server, shake transport.Handshake) (*grpc.ClientConn, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l, shake) }()
	t.Cleanup(func() {
		s.Stop()
		assert.NoError(t, <-ended)
	})
	cc, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec.Raw)))
	require.NoError(t, err)
	t.Cleanup(func() { cc.Close() })
	return cc, path
}

// A peer of a connection, for tests.
type peerInfo struct{}

func (peerInfo) AuthType() string { return "test" }

func shake(nc net.Conn) (net.Conn, credentials.AuthInfo, error) { return nc, peerInfo{}, nil }

func TestADrainTellsClientsBeforeCallsEnd(t *testing.T) {
	begun, end := make(chan struct{}), make(chan struct{})
	s := NewServer(transport.ServerConfig{Handler: func(_ any, ss grpc.ServerStream) error {
		close(begun)
		<-end
		return ss.SendMsg(codec.NewFrame([]byte("late")))
	}})
	cc, _ := serve(t, s, shake)
	answered := make(chan error, 1)
	var reply codec.Frame
	go func() { answered <- cc.Invoke(t.Context(), "/a/B", &codec.Frame{}, &reply) }()
	<-begun
	known, greeting := s.Peers()
	assert.Equal(t, []credentials.AuthInfo{peerInfo{}}, known)
	assert.Empty(t, greeting)
	s.Drain(t.Context(), func() { close(end) })
	require.NoError(t, <-answered)
	assert.Equal(t, "late", string(reply.Bytes()))
	known, _ = s.Peers()
	assert.Empty(t, known)
}

func TestADrainWaitsForAClientThatHasNotBegun(t *testing.T) {
	s := NewServer(transport.ServerConfig{})
	_, path := serve(t, s, shake)
	silent, err := net.Dial("unix", path)
	require.NoError(t, err)
	defer silent.Close()
	require.Eventually(t, func() bool { _, greeting := s.Peers(); return len(greeting) == 1 }, 20*time.Second, time.Millisecond)
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		s.Drain(t.Context(), nil)
	}()
	select {
	case <-drained:
		t.Fatal("the client would see its connection closed without a word")
	case <-time.After(50 * time.Millisecond):
	}
	s.EndSilent(nil)
	<-drained
}

func TestADrainEndsWithItsContext(t *testing.T) {
	onBothPaths(t, func(t *testing.T, newServer func(transport.ServerConfig) server) {
		begun, ended := make(chan struct{}), make(chan struct{})
		s := newServer(transport.ServerConfig{Handler: func(_ any, ss grpc.ServerStream) error {
			close(begun)
			<-ss.Context().Done()
			close(ended)
			return nil
		}})
		cc, _ := serve(t, s, nil)
		answered := make(chan error, 1)
		go func() { answered <- cc.Invoke(t.Context(), "/a/B", &codec.Frame{}, &codec.Frame{}) }()
		<-begun
		ctx, cancel := context.WithCancel(t.Context())
		s.Drain(ctx, cancel)
		<-ended
		assert.Equal(t, codes.Unavailable, status.Code(<-answered))
	})
}

func TestAPanicEndsOnlyItsCall(t *testing.T) {
	onBothPaths(t, func(t *testing.T, newServer func(transport.ServerConfig) server) {
		cc, _ := serve(t, newServer(transport.ServerConfig{Handler: func(any, grpc.ServerStream) error { panic("out of luck") }}), nil)
		for range 2 {
			err := cc.Invoke(t.Context(), "/a/B", &codec.Frame{}, &codec.Frame{})
			assert.Equal(t, codes.Internal, status.Code(err))
			assert.NotContains(t, err.Error(), "luck")
		}
	})
}
