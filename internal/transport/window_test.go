//go:build transport

package transport_test

import (
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/codec"
)

// Each message costs memory, however short it is. So the five bytes before it use the windows
// until it is received.
func TestEmptyMessagesThatNobodyReceivesUseTheWindows(t *testing.T) {
	release := make(chan struct{})
	p := rawClient(t, served(t, func(_ any, ss grpc.ServerStream) error {
		<-release
		for {
			if err := ss.RecvMsg(&codec.Frame{}); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
		}
	}))
	given := map[uint32]int{} // :: stream → what the server lets us send
	until := func(good func(http2.Frame) bool) {
		f := p.until(func(f http2.Frame) bool {
			if w, ok := f.(*http2.WindowUpdateFrame); ok {
				given[w.StreamID] += int(w.Increment)
			}
			return good(f)
		})
		require.NotNil(t, f, "the connection was closed")
	}
	pinged := func(f http2.Frame) bool { ping, ok := f.(*http2.PingFrame); return ok && ping.IsAck() }

	const streams, each = 10, 65535
	for i := range uint32(streams) {
		p.headers(2*i+1, false, p.request())
		for left := each; left > 0; left -= min(left, 16380) {
			p.data(2*i+1, left <= 16380, make([]byte, min(left, 16380)))
		}
	}
	_ = p.framer.WritePing(false, [8]byte{})
	require.NoError(t, p.say())
	until(pinged)
	assert.Equal(t, map[uint32]int{0: 1<<20 - 65535}, given, "more than a connection begins with")

	close(release)
	ended := 0
	until(func(f http2.Frame) bool {
		if h, ok := f.(*http2.MetaHeadersFrame); ok && h.StreamEnded() {
			assert.Equal(t, "0", fieldsOf(h)["grpc-status"])
			ended++
		}
		return ended == streams
	})
	_ = p.framer.WritePing(false, [8]byte{})
	require.NoError(t, p.say())
	until(pinged)
	assert.Greater(t, given[0], 1<<20-65535+streams*each-(1<<18), "what was received is not given back")
}
