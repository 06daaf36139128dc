package transport_test

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
	"github.com/criproxy/criproxy/internal/transport"
)

// purse is a budget that counts what is taken from it.
type purse struct {
	size  int64
	free  *semaphore.Weighted
	taken atomic.Int64
	asked atomic.Int64
}

func newPurse(n int64) *purse { return &purse{size: n, free: semaphore.NewWeighted(n)} }

func (p *purse) TryReserve(_ context.Context, n int) bool {
	p.asked.Add(1)
	if !p.free.TryAcquire(int64(n)) {
		return false
	}
	p.taken.Add(int64(n))
	return true
}

func (p *purse) Reserve(ctx context.Context, n int) error {
	if int64(n) > p.size {
		return status.Error(codes.ResourceExhausted, "the purse is too small")
	}
	if err := p.free.Acquire(ctx, int64(n)); err != nil {
		return status.Error(codes.ResourceExhausted, "no memory")
	}
	p.taken.Add(int64(n))
	return nil
}

func (p *purse) Release(_ context.Context, n int) {
	p.taken.Add(-int64(n))
	p.free.Release(int64(n))
}

func (p *purse) empty(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { return p.taken.Load() == 0 }, patience, time.Millisecond, "memory is not given back")
}

const megabyte = 1 << 20

func TestAWindowGrowsWhenThereIsMemoryForTheMessage(t *testing.T) {
	p := newPurse(megabyte)
	l := servedAs(t, transport.ServerConfig{Handler: echo, Budget: p})
	require.True(t, p.TryReserve(t.Context(), megabyte)) // for other messages
	c := rawClient(t, l)
	c.headers(1, false, c.request())
	body := prefixed(make([]byte, 200_000))
	c.data(1, false, body[:16000])
	require.NoError(t, c.say())

	_ = c.nc.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	for {
		f, err := c.reads.ReadFrame()
		if err != nil {
			break // no window update has come
		}
		w, ok := f.(*http2.WindowUpdateFrame)
		require.False(t, ok && w.StreamID == 1, "the window has grown without memory")
	}
	c.reads = http2.NewFramer(nil, c.nc)
	p.Release(t.Context(), megabyte)
	f := c.until(func(f http2.Frame) bool { w, ok := f.(*http2.WindowUpdateFrame); return ok && w.StreamID == 1 })
	require.NotNil(t, f)
	assert.GreaterOrEqual(t, int(f.(*http2.WindowUpdateFrame).Increment), 200_000-65535, "the message does not fit")
	assert.EqualValues(t, 200_000, p.taken.Load())
	_ = c.framer.WriteRSTStream(1, http2.ErrCodeCancel)
	require.NoError(t, c.say())
	p.empty(t)
}

func TestMemoryIsAlwaysGivenBack(t *testing.T) {
	for name, h := range map[string]grpc.StreamHandler{
		"it is freed": echo,
		"the handler does not receive it": func(_ any, ss grpc.ServerStream) error {
			time.Sleep(10 * time.Millisecond) // most messages have arrived by then, but none must have
			return nil
		},
		"it is not freed": func(_ any, ss grpc.ServerStream) error { return ss.RecvMsg(&codec.Frame{}) },
		"the handler fails": func(_ any, ss grpc.ServerStream) error {
			return status.Error(codes.Aborted, "no")
		},
	} {
		t.Run(name, func(t *testing.T) {
			for client, c := range map[string]end{"ours": ours, "grpc-go": grpcGo} {
				p := newPurse(4 * megabyte)
				l := servedAs(t, transport.ServerConfig{Handler: h, Budget: p, Pings: anyPings})
				cc := c.dial(t, dialer(l))
				var all sync.WaitGroup
				for range 8 {
					all.Go(func() {
						for range 5 {
							ctx, cancel := context.WithTimeout(t.Context(), patience)
							_ = cc.Invoke(ctx, "/s.S/M", codec.NewFrame(make([]byte, megabyte)), &codec.Frame{})
							cancel()
						}
					})
				}
				all.Wait()
				assert.NotZero(t, p.asked.Load(), client)
				p.empty(t)
			}
		})
	}
}

func TestAReplyReservesMemoryWithItsContext(t *testing.T) {
	l := served(t, echo)
	p := newPurse(2 * megabyte)
	c := newClient(t, transport.ClientConfig{Dial: dialer(l), Budget: p})
	var reply codec.Frame
	require.NoError(t, c.Invoke(t.Context(), "/s.S/M", codec.NewFrame(make([]byte, megabyte)), &reply))
	assert.EqualValues(t, megabyte, p.taken.Load(), "until the reply is freed")
	reply.Free()
	p.empty(t)

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := c.Invoke(ctx, "/s.S/M", codec.NewFrame(make([]byte, 3*megabyte)), &reply)
	assert.Contains(t, []codes.Code{codes.ResourceExhausted, codes.DeadlineExceeded}, status.Code(err), err)
	require.NoError(t, c.Invoke(t.Context(), "/s.S/M", codec.NewFrame(make([]byte, megabyte)), &reply), "the connection is as good as before")
	reply.Free()
	p.empty(t)
}

func TestCallsWaitForMemoryAndGoOn(t *testing.T) {
	l := served(t, echo)
	p := newPurse(megabyte) // one at a time
	c := newClient(t, transport.ClientConfig{Dial: dialer(l), Budget: p})
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			var reply codec.Frame
			assert.NoError(t, c.Invoke(t.Context(), "/s.S/M", codec.NewFrame(make([]byte, megabyte)), &reply))
			assert.Equal(t, megabyte, reply.Len())
			reply.Free()
		})
	}
	all.Wait()
	p.empty(t)
}

// Five bytes could take memory from other calls for ever. A client that sends a byte now and then is treated like one that sends
// nothing.
func TestATrickleKeepsNeitherMemoryNorConnection(t *testing.T) {
	p := newPurse(megabyte)
	l := servedAs(t, transport.ServerConfig{Handler: echo, Budget: p, StallTimeout: 50 * time.Millisecond})
	drip := func(c *rawPeer, b ...byte) {
		for range time.Tick(5 * time.Millisecond) {
			if _, err := c.nc.Write(b); err != nil {
				return
			}
		}
	}
	c := rawClient(t, l)
	c.headers(1, false, c.request())
	c.data(1, false, prefixed(make([]byte, megabyte))[:5])
	require.NoError(t, c.say())
	go drip(c, 0, 0, 1, 0, 0, 0, 0, 0, 1, 'x') // a DATA frame with a byte
	assert.Equal(t, "8", c.status(1)["grpc-status"])
	p.empty(t)
	for name, begin := range map[string][]byte{
		"a HEADERS frame": {0, 0x10, 0, 1, 4, 0, 0, 0, 3},
		"a DATA frame":    {0, 0x10, 0, 0, 0, 0, 0, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			c := rawClient(t, l)
			c.headers(1, false, c.request())
			c.out.Write(begin)
			require.NoError(t, c.say())
			go drip(c, 0)
			c.goAway()
		})
	}
}

func TestAStalledFrameEndsTheConnection(t *testing.T) {
	l := servedAs(t, transport.ServerConfig{Handler: echo, StallTimeout: 50 * time.Millisecond})
	for name, part := range map[string][]byte{
		"a DATA frame":    {0, 1, 0, 0, 0, 0, 0, 0, 1, 'x'},
		"a HEADERS frame": {0, 1, 0, 1, 4, 0, 0, 0, 3, 'x'},
		"a header block":  {0, 0, 0, 1, 0, 0, 0, 0, 3},
		"a PING frame":    {0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3},
	} {
		t.Run(name, func(t *testing.T) {
			c := rawClient(t, l)
			c.headers(1, false, c.request())
			c.out.Write(part)
			require.NoError(t, c.say())
			c.goAway()
		})
	}
	t.Run("but silence between frames does not", func(t *testing.T) {
		c := rawClient(t, l)
		time.Sleep(200 * time.Millisecond) // four times StallTimeout: time is the subject
		c.call(1, []byte("x"))
		require.NoError(t, c.say())
		assert.Equal(t, "0", c.status(1)["grpc-status"])
	})
}

// A client that does not read blocks itself. The server holds nothing of its replies but the
// messages that handlers are sending.
func TestAClientThatReadsNothingIsBounded(t *testing.T) {
	var running, ended atomic.Int64
	l := servedAs(t, transport.ServerConfig{Handler: func(srv any, ss grpc.ServerStream) error {
		running.Add(1)
		defer ended.Add(1)
		return answer(srv, ss)
	}})
	c := rawClient(t, l)
	_ = c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1})
	_ = c.framer.WriteWindowUpdate(0, 1<<30)
	require.NoError(t, c.say())
	before := spent().heap
	const n = 200
	call := func(i uint32, more ...string) {
		c.headers(2*i+1, false, c.requestTo("/bench/1x1000000", more...))
		c.data(2*i+1, true, prefixed(nil))
	}
	for i := range uint32(n) {
		call(i)
	}
	require.NoError(t, c.say())
	require.Eventually(t, func() bool { return running.Load() == n }, patience, time.Millisecond)
	muxtest.Parked(t, n, "transport.(*conn).await")
	runtime.GC()
	grown := spent().heap - before
	t.Logf("%d replies of 1 MB to a client that reads nothing: heap +%d KB", n, grown>>10)
	assert.Less(t, grown, int64(8<<20))
	call(n, "grpc-timeout", "20m")
	require.NoError(t, c.say())
	require.Eventually(t, func() bool { return ended.Load() == 1 }, patience, time.Millisecond, "a handler waits beyond its deadline")

	good := newClient(t, transport.ClientConfig{Dial: dialer(l)})
	require.NoError(t, good.Invoke(t.Context(), "/bench/1x10", &codec.Frame{}, &codec.Frame{}), "another connection is as good as before")
}

// Messages that a handler does not receive stay with the client.
func TestAHandlerThatReadsNothingStopsItsClient(t *testing.T) {
	release := make(chan struct{})
	l := servedAs(t, transport.ServerConfig{Handler: func(_ any, ss grpc.ServerStream) error {
		<-release
		return echo(nil, ss)
	}, Pings: anyPings})
	for client, c := range map[string]end{"ours": ours, "grpc-go": grpcGo} {
		cc := c.dial(t, dialer(l))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		cs, err := cc.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/s.S/M")
		require.NoError(t, err)
		var sent atomic.Int64
		go func() {
			for range 1000 {
				if cs.SendMsg(codec.NewFrame(make([]byte, 10_000))) != nil {
					return
				}
				sent.Add(1)
			}
			_ = cs.CloseSend()
		}()
		muxtest.Parked(t, 1, "transport.(*conn).await", "transport.(*writeQuota).get")
		assert.Less(t, sent.Load(), int64(40), client) // a window, and what the client buffers
		cancel()
	}
	close(release)
}

// Each sender that waits for the window of the connection gets its turn, even if something else
// wakes it.
func TestSendersThatWaitForTheConnectionAllGoOn(t *testing.T) {
	l := served(t, answer)
	for range 20 {
		c := rawClient(t, l)
		var ids []uint32
		for i := range uint32(60) {
			ids = append(ids, 2*i+1)
			c.headers(2*i+1, false, c.requestTo("/bench/2x3000"))
			c.data(2*i+1, true, prefixed(nil))
		}
		require.NoError(t, c.say())
		muxtest.Parked(t, 40, "transport.(*conn).await")                                          // the window of the connection is used up
		_ = c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 65536}) // wakes all
		_ = c.framer.WriteWindowUpdate(0, 1<<20)
		require.NoError(t, c.say())
		c.ends(ids...)
		require.NoError(t, c.nc.Close())
	}
}

// Bytes that wait for memory, or for their turn, count in the window of their stream. The window
// does not grow for a message that has already arrived when it gets its memory.
func TestParkedBytesCountInTheWindow(t *testing.T) {
	const window, size = 65535, 24_000
	receive := make(chan struct{})
	l := servedAs(t, transport.ServerConfig{Window: 1, Pings: anyPings, Handler: func(_ any, ss grpc.ServerStream) error {
		for range receive {
			if err := ss.RecvMsg(&codec.Frame{}); err != nil {
				return err
			}
		}
		<-ss.Context().Done()
		return nil
	}})
	defer close(receive)
	p := rawClient(t, l)
	p.headers(1, false, p.request())
	all := bytes.Repeat(prefixed(make([]byte, size)), 4)
	updated := 0
	update := func(f http2.Frame) {
		if u, ok := f.(*http2.WindowUpdateFrame); ok && u.StreamID == 1 {
			updated += int(u.Increment)
		}
	}
	send := func(b []byte) { // as fast as the window of the connection lets it
		for len(b) > 0 {
			n := min(len(b), 8_000)
			p.data(1, false, b[:n])
			require.NoError(t, p.framer.WritePing(false, [8]byte{}))
			require.NoError(t, p.say())
			p.until(func(f http2.Frame) bool { update(f); return isPing(f) })
			b = b[n:]
		}
	}
	send(all[:window])
	// The first message has arrived; the second and the beginning of the third are parked.
	const parked = window - (prefixLength + size)
	assert.LessOrEqual(t, updated, window-parked)
	receive <- struct{}{}
	const left = parked - (prefixLength + size)
	p.until(func(f http2.Frame) bool { update(f); return updated >= window-left })
	assert.Equal(t, window-left, updated)
}

const prefixLength = 5

// A receiver that keeps up with short messages gets a wider window, if there is memory for the
// additional bytes.
func TestAWindowGrowsWithAReceiverThatKeepsUp(t *testing.T) {
	const first, wide = 65535, 256 << 10
	for _, free := range []bool{true, false} {
		t.Run(fmt.Sprintf("there is memory: %t", free), func(t *testing.T) {
			purse := newPurse(megabyte)
			if !free {
				require.True(t, purse.TryReserve(t.Context(), megabyte))
			}
			l := servedAs(t, transport.ServerConfig{Budget: purse, Pings: anyPings, Handler: func(_ any, ss grpc.ServerStream) error {
				for {
					if err := ss.RecvMsg(&codec.Frame{}); err != nil {
						return err
					}
				}
			}})
			p := rawClient(t, l)
			p.headers(1, false, p.request())
			some := bytes.Repeat(prefixed(make([]byte, 995)), 8)
			window := first
			for sent := 0; sent < 4*megabyte && window < first+first/2; sent += len(some) {
				p.data(1, false, some)
				window -= len(some)
				require.NoError(t, p.framer.WritePing(false, [8]byte{}))
				require.NoError(t, p.say())
				answered := false
				p.until(func(f http2.Frame) bool {
					if u, ok := f.(*http2.WindowUpdateFrame); ok && u.StreamID == 1 {
						window += int(u.Increment)
					}
					answered = answered || isPing(f)
					return answered && window >= len(some)
				})
			}
			if !free {
				assert.LessOrEqual(t, window, first)
				return
			}
			assert.Greater(t, window, wide/2)
			assert.LessOrEqual(t, window, wide)
			assert.EqualValues(t, wide-first, purse.taken.Load())
			require.NoError(t, p.framer.WriteRSTStream(1, http2.ErrCodeCancel))
			require.NoError(t, p.say())
			purse.empty(t)
		})
	}
}
