package transport

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// refusing is a server that refuses the first attempt of each call, and does not answer the second.
func refusing(t *testing.T) net.Listener {
	l, err := net.Listen("unix", filepath.Join(testkit.SocketDir(t), "s.sock"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer nc.Close()
				fr := http2.NewFramer(nc, nc)
				if _, err := io.CopyN(io.Discard, nc, int64(len(http2.ClientPreface))); err != nil || fr.WriteSettings() != nil {
					return
				}
				for n := 0; ; {
					f, err := fr.ReadFrame()
					if err != nil {
						return
					}
					if _, ok := f.(*http2.HeadersFrame); !ok {
						continue
					}
					if n++; n%2 == 1 {
						_ = fr.WriteRSTStream(f.Header().StreamID, http2.ErrCodeRefusedStream)
					}
				}
			}()
		}
	}()
	return l
}

// A call whose context ends while the client retries it leaves no stream behind.
func TestACallThatEndsDuringItsRetryIsReset(t *testing.T) {
	l := refusing(t)
	c := NewClient(ClientConfig{Dial: func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", l.Addr().String())
	}})
	defer c.Close()
	for range 500 {
		ctx, cancel := context.WithCancel(t.Context())
		s, err := c.Open(ctx, &grpc.StreamDesc{ServerStreams: true}, "/s.S/M", &codec.Frame{})
		require.NoError(t, err)
		var all sync.WaitGroup
		all.Go(func() {
			time.Sleep(time.Duration(rand.IntN(150)) * time.Microsecond) // each time at another moment of the call
			cancel()
		})
		_, err = s.Recv()
		assert.Error(t, err)
		all.Wait()
	}
	conn := c.now.Load()
	assert.Eventually(t, func() bool {
		conn.mu.Lock()
		defer conn.mu.Unlock()
		return len(conn.streams) == 0
	}, 20*time.Second, time.Millisecond)
}
