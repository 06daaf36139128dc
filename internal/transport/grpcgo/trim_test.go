package grpcgo

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/testing/testkit"
	"github.com/criproxy/criproxy/internal/transport"
)

// A halfClosing listener accepts connections that the server may half close, as it may those of a socket.
type halfClosing struct{ *bufconn.Listener }

func (l halfClosing) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	return halfClosed{nc}, err
}

type halfClosed struct{ net.Conn }

func (halfClosed) CloseWrite() error { return nil }

// A client that connects and says nothing kept its descriptor for two minutes with grpc-go.
func TestAClientThatDoesNotGreetIsCutOff(t *testing.T) {
	onBothPaths(t, func(t *testing.T, newServer func(transport.ServerConfig) server) {
		testkit.OnSimulatedClock(t, func(t *testing.T) {
			s := newServer(transport.ServerConfig{})
			l := halfClosing{bufconn.Listen(64 << 10)}
			served := make(chan error, 1)
			go func() { served <- s.Serve(l, nil) }()
			nc, err := l.Dial()
			require.NoError(t, err)
			defer nc.Close()
			began := time.Now()
			require.NoError(t, nc.SetDeadline(began.Add(time.Hour)))
			_, _ = io.Copy(io.Discard, nc) // until it ends, in whatever way
			assert.Equal(t, transport.DefaultHandshakeTimeout, time.Since(began))
			s.Stop()
			assert.NoError(t, <-served)
		})
	})
}

// A client that was slow to leave kept its descriptor, until the socket refused new clients.
func TestAClientThatIsSlowToLeaveIsCutOff(t *testing.T) {
	onBothPaths(t, func(t *testing.T, newServer func(transport.ServerConfig) server) {
		testkit.OnSimulatedClock(t, func(t *testing.T) { // its clock stands still: no client that leaves runs out of time
			end := make(chan struct{})
			s := newServer(transport.ServerConfig{Handler: func(_ any, ss grpc.ServerStream) error {
				<-end
				return ss.SendMsg(&codec.Frame{})
			}})
			l := halfClosing{bufconn.Listen(64 << 10)}
			served := make(chan error, 1)
			go func() { served <- s.Serve(l, nil) }()
			cc, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec.Raw)),
				grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
			require.NoError(t, err)
			answered := make(chan error, 1)
			go func() { answered <- cc.Invoke(t.Context(), "/a/B", &codec.Frame{}, &codec.Frame{}) }()
			synctest.Wait()
			for range 5 {
				nc, err := l.Dial()
				require.NoError(t, err)
				defer nc.Close()
				_, err = nc.Write([]byte(http2.ClientPreface))
				require.NoError(t, err)
				require.NoError(t, http2.NewFramer(nc, nil).WriteSettings())
			}
			synctest.Wait()
			trim := func(most int) transport.Crowd {
				defer synctest.Wait()
				return s.Trim(l, most, func(net.Conn) bool { return false })
			}
			assert.Equal(t, transport.Crowd{Ended: 4, Left: 2, All: 6}, trim(2))
			assert.Equal(t, transport.Crowd{Left: 2, All: 4}, trim(2))
			assert.Equal(t, transport.Crowd{Ended: 1, Left: 1, All: 2}, trim(0))
			assert.Equal(t, transport.Crowd{Left: 1, All: 1}, trim(0))
			close(end)
			assert.NoError(t, <-answered, "a connection with a call stays")
			require.NoError(t, cc.Close())
			s.Stop()
			assert.NoError(t, <-served)
		})
	})
}
