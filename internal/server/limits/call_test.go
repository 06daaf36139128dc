package limits

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// holder is a memory for 4 messages of 1 MiB. One connection may have 2 of them.
type holder struct {
	*Memory
	client *Client
}

const large = 1 << 20 // bytes of a message

func newHolder() holder {
	m := &Memory{total: 4 * large, maxMessage: large, free: semaphore.NewWeighted(4 * large), side: semaphore.NewWeighted(2 * large)}
	client := &Client{Socket: &Socket{}}
	client.Socket.Main.Store(true)
	client.Socket.MaxCalls.Store(10)
	return holder{m, client}
}

// isFree asserts that all memory was returned, and none twice.
func (m holder) isFree(t *testing.T) {
	t.Helper()
	assert.Zero(t, m.taken.Load())
	for all, n := range map[*semaphore.Weighted]int64{m.free: m.total, m.client.shares(m.Memory)[0]: m.total / 2} {
		require.True(t, all.TryAcquire(n))
		all.Release(n)
	}
}

// known is the AuthInfo of a client.
type known struct{ client *Client }

func (known) AuthType() string  { return "test" }
func (k known) Limits() *Client { return k.client }

// streamOf is a client's stream: send is called with each reply.
type streamOf struct {
	grpc.ServerStream
	ctx  context.Context
	send func()
}

func (s streamOf) Context() context.Context { return s.ctx }
func (s streamOf) SendMsg(any) error        { s.send(); return nil }

// call makes a call of a method; send is called with each reply.
func (m holder) call(t *testing.T, method string, send func(), handler func(ctx context.Context, ss grpc.ServerStream)) {
	ctx := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: known{m.client}})
	require.NoError(t, m.Intercept(nil, streamOf{ctx: ctx, send: send}, &grpc.StreamServerInfo{FullMethod: method}, func(_ any, ss grpc.ServerStream) error {
		handler(ss.Context(), ss)
		return nil
	}))
}

func TestAReplyKeepsItsMemoryUntilItIsSent(t *testing.T) {
	m := newHolder()
	sent := 0
	m.call(t, "/a.B/C", func() {
		sent++
		assert.EqualValues(t, large, m.taken.Load(), "a client may take its time to read it")
	}, func(ctx context.Context, ss grpc.ServerStream) {
		for range 3 {
			require.True(t, m.TryReserve(ctx, large))
			m.Release(ctx, large) // the director has made a copy with other names
			require.NoError(t, ss.SendMsg(&codec.Frame{}))
			assert.Zero(t, m.taken.Load())
		}
	})
	assert.Equal(t, 3, sent)
	m.isFree(t)
}

func TestPartsOfAListKeepTheirMemoryUntilItsEnd(t *testing.T) {
	m := newHolder()
	m.lists = map[string]bool{"/a.B/List": true}
	m.call(t, "/a.B/List", func() {}, func(ctx context.Context, ss grpc.ServerStream) {
		require.True(t, m.TryReserve(ctx, large))
		require.NoError(t, Keep(ctx, large))
		m.Release(ctx, large)
		require.NoError(t, ss.SendMsg(&codec.Frame{}))
		assert.EqualValues(t, 2*large, m.taken.Load())
		err := Keep(ctx, large)
		testkit.AssertCode(t, codes.ResourceExhausted, err)
		assert.ErrorContains(t, err, "raise GOMEMLIMIT")
		require.True(t, m.TryReserve(ctx, large), "by what it has freed")
		m.Release(ctx, large)
	})
	m.isFree(t)
}

// A request to a runtime may go on after the client has left or has its answer.
func TestMemoryFreedAfterTheEndIsReturnedOnce(t *testing.T) {
	m := newHolder()
	var later context.Context
	m.call(t, "/a.B/C", func() {}, func(ctx context.Context, _ grpc.ServerStream) {
		later = ctx
		require.True(t, m.TryReserve(ctx, large))
		require.True(t, m.TryReserve(ctx, large))
		m.Release(ctx, large)
	})
	m.isFree(t)
	m.Release(later, large)
	m.isFree(t)
	require.True(t, m.TryReserve(later, large), "the next message gets memory at once")
	m.Release(later, large)
	testkit.AssertCode(t, codes.Canceled, Keep(later, large))
	m.isFree(t)
}

// Clients of other sockets than the main one have half, and a client that connects to one of them
// a quarter, however many connections that are.
func TestOtherSocketsLeaveMemoryForTheMainOne(t *testing.T) {
	m := newHolder()
	try := func(c *Client) bool { return m.try(c, large) }
	one, two := &Socket{}, &Socket{}
	first, second := &Client{Socket: one}, &Client{Socket: two}
	require.True(t, try(first))
	assert.False(t, try(&Client{Socket: one}), "another connection to the same socket")
	require.True(t, try(second))
	assert.False(t, try(&Client{Socket: &Socket{}}), "a third socket")
	require.True(t, m.try(m.client, 2*large))
	m.release(first, large)
	m.release(second, large)
	m.release(m.client, 2*large)
	m.isFree(t)
}

func TestWhatCriproxyAsksByItselfIsNotCounted(t *testing.T) {
	m := newHolder()
	require.True(t, m.Take(m.total))
	assert.True(t, m.TryReserve(t.Context(), large))
	assert.NoError(t, m.Reserve(t.Context(), large))
	m.Release(t.Context(), large)
	assert.NoError(t, Keep(t.Context(), large))
	m.Give(m.total)
	m.isFree(t)
}
