package limits

import (
	"context"
	"encoding/binary"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/testkit"
)

// holder is a memory for 4 messages of a MiB, of which one connection may have 2.
type holder struct {
	*Memory
	who *Client
}

const large = 1 << 20 // bytes of a message

func newHolder() holder {
	return holder{&Memory{total: 4 * large, maxMessage: large, free: semaphore.NewWeighted(4 * large), side: semaphore.NewWeighted(2 * large)}, &Client{}}
}

func (m holder) call() *reservation {
	return &reservation{memory: m.Memory, client: m.who, method: "/a.B/C", shares: 1}
}

// lists has the method of the calls list, and its replies be expected to take n bytes.
func (m holder) lists(n int64) {
	var size atomic.Int64
	size.Store(n)
	m.sizes = map[string]*atomic.Int64{m.call().method: &size}
}

// isFree asserts that all was given back, and nothing twice.
func (m holder) isFree(t *testing.T) {
	t.Helper()
	assert.Zero(t, m.taken.Load())
	for all, n := range map[*semaphore.Weighted]int64{m.free: m.total, m.who.shares(m.Memory)[0]: m.total / 2} {
		require.True(t, all.TryAcquire(n))
		all.Release(n)
	}
	assert.Zero(t, m.who.debt.wait(t.Context()))
}

// known is what credentials say of a client.
type known struct{ client *Client }

func (known) AuthType() string  { return "test" }
func (k known) Limits() *Client { return k.client }

// largeRequests are those of a client without an end, as gRPC's transport has them.
type largeRequests struct{ grpc.ServerTransportStream }

func (largeRequests) ReadMessageHeader(header []byte) error {
	binary.BigEndian.PutUint32(header[1:], large)
	return nil
}

func (largeRequests) Read(n int) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(make([]byte, n))}, nil
}

func (largeRequests) RecvCompress() string { return "" }

// streamOf is a client's stream of which there is nothing but its context.
type streamOf struct {
	grpc.ServerStream
	ctx context.Context
}

func (s streamOf) Context() context.Context { return s.ctx }

// A goroutine of grpc-proxy reads from the client until that fails, and the runtime may have
// ended the call before: what had been given back with the call was given back again.
func TestWhoReadsOnWhenTheCallHasEndedChangesNothing(t *testing.T) {
	m := newHolder()
	m.who.Socket = &Socket{}
	m.who.Socket.Main.Store(true)
	m.who.Socket.MaxCalls.Store(1)
	var left grpc.ServerStream // as to that goroutine
	ctx := grpc.NewContextWithServerTransportStream(peer.NewContext(t.Context(), &peer.Peer{AuthInfo: known{m.who}}), largeRequests{})
	require.NoError(t, m.Intercept(nil, streamOf{ctx: ctx}, &grpc.StreamServerInfo{FullMethod: "/a.B/C"}, func(_ any, ss grpc.ServerStream) error {
		left = ss
		require.NoError(t, ss.RecvMsg(&codec.Frame{}))
		assert.EqualValues(t, large, m.taken.Load())
		require.NoError(t, ss.RecvMsg(&codec.Frame{}))
		assert.EqualValues(t, large, m.taken.Load(), "one is here at a time")
		return nil
	}))
	m.isFree(t)
	testkit.AssertCode(t, codes.Canceled, left.RecvMsg(&codec.Frame{}))
	m.isFree(t)
	testkit.AssertCode(t, codes.Canceled, left.RecvMsg(&codec.Frame{}))
	m.isFree(t)
}

func TestNothingIsTakenOnceACallHasEnded(t *testing.T) {
	m := newHolder()
	h := m.call()
	h.done()
	testkit.AssertCode(t, codes.Canceled, h.take(t.Context(), large))
	testkit.AssertCode(t, codes.Canceled, h.keeps(large))
	h.sends(large)
	h.sends(4 * large) // which would be owed
	h.share()()
	m.isFree(t)
}

func TestACallThatHasEndedKeepsWhatItsRepliesNeed(t *testing.T) {
	m := newHolder()
	h := m.call()
	require.NoError(t, h.take(t.Context(), large))
	onTheWire := h.share()
	h.done()
	assert.EqualValues(t, large, m.taken.Load())
	h.give(large)
	require.NoError(t, h.take(t.Context(), large))
	onTheWire()
	m.isFree(t)
}

func TestWhoWaitsForMemoryUntilTheCallHasEndedGetsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newHolder()
		h := m.call()
		require.True(t, m.free.TryAcquire(m.total))
		waited := make(chan error, 1)
		go func() { waited <- h.take(t.Context(), large) }()
		synctest.Wait()
		h.done()
		m.free.Release(m.total)
		testkit.AssertCode(t, codes.Canceled, <-waited)
		m.isFree(t)
	})
}

// Who may connect to other sockets than the main one has half, and who connects to one of them
// a quarter, however many connections that are.
func TestOtherSocketsLeaveMemoryForTheMainOne(t *testing.T) {
	m := newHolder()
	side := func(s *Socket) *reservation {
		return &reservation{memory: m.Memory, client: &Client{Socket: s}, shares: 1}
	}
	one, two := &Socket{}, &Socket{}
	first := side(one)
	require.NoError(t, first.take(t.Context(), large))
	assert.False(t, side(one).client.shares(m.Memory).try(large), "another connection to the same socket")
	second := side(two)
	require.NoError(t, second.take(t.Context(), large))
	assert.False(t, side(&Socket{}).client.shares(m.Memory).try(large), "a third socket")
	main := m.call()
	require.NoError(t, main.take(t.Context(), 2*large))
	for _, h := range []*reservation{first, second, main} {
		h.done()
	}
	m.isFree(t)
}
