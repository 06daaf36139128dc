package transport_test

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/transport"
)

// Each message costs memory, however short it is. So its five-byte prefix uses the windows until the
// message is received.
func TestUnreadEmptyMessagesUseTheWindows(t *testing.T) {
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
	assert.Equal(t, map[uint32]int{0: 1<<20 - 65535}, given, "the server enlarged its first windows")

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
	assert.Greater(t, given[0], 1<<20-65535+streams*each-(1<<18), "received bytes are not given back")
}

// Long messages wait for memory, more than fit into the connection's window. The message that has
// memory still makes progress.
func TestWaitingMessagesDoNotBlockOthers(t *testing.T) {
	for client, c := range map[string]end{"ours": ours, "grpc-go": grpcGo} {
		t.Run(client, func(t *testing.T) {
			budget := newPurse(megabyte) // for one message
			l := servedAs(t, transport.ServerConfig{Handler: echo, Budget: budget, Pings: anyPings, StallTimeout: time.Minute})
			cc := c.dial(t, dialer(l))
			var all sync.WaitGroup
			for range 40 {
				all.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					defer cancel()
					assert.NoError(t, cc.Invoke(ctx, "/s.S/M", codec.NewFrame(make([]byte, megabyte)), &codec.Frame{}))
				})
			}
			all.Wait()
			budget.empty(t)
		})
	}
}

// Messages that never get memory give back the part of the windows that they have used.
func TestRefusedMessagesGiveTheirWindowBack(t *testing.T) {
	budget := newPurse(megabyte)
	require.True(t, budget.TryReserve(t.Context(), megabyte)) // by others
	l := servedAs(t, transport.ServerConfig{Handler: echo, Budget: budget, Pings: anyPings})
	c := newClient(t, transport.ClientConfig{Dial: dialer(l)})
	for range 40 {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		assert.Error(t, c.Invoke(ctx, "/s.S/M", codec.NewFrame(make([]byte, megabyte)), &codec.Frame{}))
		cancel()
	}
	assert.NoError(t, c.Invoke(t.Context(), "/s.S/M", codec.NewFrame(make([]byte, 4000)), &codec.Frame{}))
	budget.Release(t.Context(), megabyte)
	assert.NoError(t, c.Invoke(t.Context(), "/s.S/M", codec.NewFrame(make([]byte, megabyte)), &codec.Frame{}))
	budget.empty(t)
}

func TestTooManyWaitingMessagesAreRefused(t *testing.T) {
	budget := newPurse(megabyte)
	require.True(t, budget.TryReserve(t.Context(), megabyte)) // by others
	l := servedAs(t, transport.ServerConfig{Handler: echo, Budget: budget, Pings: anyPings})
	p := rawClient(t, l)
	message := prefixed(make([]byte, megabyte))
	for i := range uint32(64) {
		p.headers(2*i+1, false, p.request())
		for at := 0; at < 65535; at += 13107 {
			p.data(2*i+1, false, message[at:at+13107])
		}
		require.NoError(t, p.say())
	}
	p.headers(129, false, p.request())
	p.data(129, false, message[:10_000])
	require.NoError(t, p.say())
	assert.Equal(t, "8", p.status(129)["grpc-status"])
	p.call(131, []byte("a short one"))
	require.NoError(t, p.say())
	assert.Equal(t, "0", p.status(131)["grpc-status"])
}
