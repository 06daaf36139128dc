package transport_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/transport"
)

// A call whose context ends while the client retries it leaves no stream behind. The server refuses the first attempt of each
// call, and does not answer the second.
func TestACallThatEndsDuringItsRetryIsReset(t *testing.T) {
	attempts := 0
	l := scripted(t, func(p *rawPeer, call *http2.MetaHeadersFrame) {
		if attempts++; attempts%2 == 1 {
			_ = p.framer.WriteRSTStream(call.StreamID, http2.ErrCodeRefusedStream)
		}
	})
	c := newClient(t, transport.ClientConfig{Dial: dialer(l)})
	for range 500 {
		ctx, cancel := context.WithCancel(t.Context())
		s, err := c.Open(ctx, &grpc.StreamDesc{ServerStreams: true}, "/s.S/M", &codec.Frame{})
		require.NoError(t, err)
		time.AfterFunc(time.Duration(rand.IntN(150))*time.Microsecond, cancel) // each time at another moment of the call
		_, err = s.Recv()
		assert.Error(t, err)
	}
	assert.Eventually(t, func() bool { return c.Streams() == 0 }, patience, time.Millisecond)
}
