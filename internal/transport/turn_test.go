package transport_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
	"github.com/criproxy/criproxy/internal/transport"
)

// A call that gets its turn and cannot begin passes the turn to the next call.
func TestACallThatCannotBeginPassesItsTurnOn(t *testing.T) {
	began, release := make(chan struct{}, 3), make(chan struct{})
	l := servedAs(t, transport.ServerConfig{MaxStreams: 1, Handler: func(_ any, ss grpc.ServerStream) error {
		began <- struct{}{}
		<-release
		return echo(nil, ss)
	}})
	c := newClient(t, transport.ClientConfig{Dial: dialer(l)})
	call := func(ctx context.Context) <-chan error {
		result := make(chan error, 1)
		go func() { result <- c.Invoke(ctx, "/s.S/M", &codec.Frame{}, &codec.Frame{}) }()
		return result
	}
	first := call(t.Context())
	<-began
	tooLong := call(metadata.AppendToOutgoingContext(t.Context(), "x-long", strings.Repeat("x", 100<<10)))
	muxtest.Parked(t, 1, "transport.(*conn).awaitTurn")
	behind := call(t.Context())
	muxtest.Parked(t, 2, "transport.(*conn).awaitTurn")
	close(release)
	require.NoError(t, <-first)
	assert.Equal(t, codes.Internal, status.Code(<-tooLong))
	select {
	case err := <-behind:
		assert.NoError(t, err)
	case <-time.After(patience):
		assert.Fail(t, "the call behind it waits for ever")
	}
}

// Half of the calls end at a random moment, most of them while they wait for their turn to begin.
func TestCallsThatEndInTheQueuePassTheirTurnOn(t *testing.T) {
	l := servedAs(t, transport.ServerConfig{Handler: echo, MaxStreams: 2, Pings: anyPings})
	c := newClient(t, transport.ClientConfig{Dial: dialer(l)})
	var all sync.WaitGroup
	for i := range 400 {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if i%2 == 0 {
				ctx, cancel = context.WithTimeout(ctx, time.Duration(rand.IntN(int(10*time.Millisecond))))
				defer cancel()
			}
			err := c.Invoke(ctx, "/s.S/M", codec.NewFrame([]byte("x")), &codec.Frame{})
			if i%2 == 0 && err != nil {
				assert.Equal(t, codes.DeadlineExceeded, status.Code(err))
				return
			}
			assert.NoError(t, err)
		})
	}
	all.Wait()
	require.NoError(t, invoke(t, c))
}

// Streams share a connection window that is shorter than three of their messages. Half of the
// streams are canceled at a random moment; the others send all their messages. There are so few
// streams that their unread messages stay below the bound for parked bytes.
func TestStreamsThatAreCancelledPassTheirTurnOn(t *testing.T) {
	const rounds, streams, messages, size = 15, 4, 6, 24_000
	for sender, dial := range map[string]end{"the client": ours, "the server": grpcGo} {
		t.Run(sender+" sends", func(t *testing.T) {
			l := servedAs(t, transport.ServerConfig{Handler: echo, Window: 1, Pings: anyPings})
			cc := dial.dial(t, dialer(l))
			if sender == "the server" {
				var err error
				cc, err = grpc.NewClient("unix:"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
					grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec.Raw)), grpc.WithStaticStreamWindowSize(65535), grpc.WithStaticConnWindowSize(65535))
				require.NoError(t, err)
				defer cc.(*grpc.ClientConn).Close()
			}
			var all sync.WaitGroup
			var whole atomic.Int64
			for i := range rounds * streams {
				if i%streams == 0 {
					all.Wait()
				}
				all.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					defer cancel()
					if i%2 == 0 {
						time.AfterFunc(time.Duration(rand.IntN(int(20*time.Millisecond))), cancel)
					}
					err := exchange(ctx, cc, messages, size)
					if i%2 == 1 && assert.NoError(t, err) {
						whole.Add(1)
					}
				})
			}
			all.Wait()
			assert.EqualValues(t, rounds*streams/2, whole.Load())
		})
	}
}

// exchange sends messages while it receives them back.
func exchange(ctx context.Context, cc grpc.ClientConnInterface, messages, size int) error {
	cs, err := cc.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/s.S/M")
	if err != nil {
		return err
	}
	go func() {
		for range messages {
			if cs.SendMsg(codec.NewFrame(make([]byte, size))) != nil {
				return
			}
		}
		_ = cs.CloseSend()
	}()
	for range messages {
		var f codec.Frame
		if err := cs.RecvMsg(&f); err != nil {
			return err
		}
		f.Free()
	}
	if err := cs.RecvMsg(&codec.Frame{}); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// SETTINGS take away the windows of most streams while they wait for the connection. The others
// send as soon as the connection can, wherever they are in the queue.
func TestSendersWithoutAWindowPassTheirTurnOn(t *testing.T) {
	const whole = 2 * (30_000 + 5)
	c := rawClient(t, served(t, answer))
	var ids []uint32
	for id := uint32(1); id < 60; id += 2 {
		ids = append(ids, id)
		c.headers(id, false, c.requestTo("/bench/2x30000"))
		c.data(id, true, prefixed(nil))
	}
	require.NoError(t, c.say())
	all, each := 0, map[uint32]int{}
	next := func() {
		f := c.next()
		require.NotNil(t, f, "the connection was closed")
		if d, ok := f.(*http2.DataFrame); ok {
			all += len(d.Data())
			each[d.StreamID] += len(d.Data())
		}
	}
	for all < 65535 {
		next()
	}
	muxtest.Parked(t, 25, "transport.(*conn).await")
	waiting := slices.DeleteFunc(slices.Clone(ids), func(id uint32) bool { return each[id] > 0 })
	first := waiting[len(waiting)-5:]
	for _, id := range first {
		_ = c.framer.WriteWindowUpdate(id, 1<<20)
	}
	_ = c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	_ = c.framer.WriteWindowUpdate(0, 1<<22)
	require.NoError(t, c.say())
	for all < 65535+len(first)*whole {
		next()
	}
	for _, id := range first {
		assert.Equal(t, whole, each[id])
	}
	_ = c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 65535})
	require.NoError(t, c.say())
	for all < len(ids)*whole {
		next()
	}
}
