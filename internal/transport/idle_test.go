//go:build !race

package transport_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/transport"
)

// The memory of an idle connection: our end and the test's. Under the race detector it is more.
func TestIdleConnectionsAreSmall(t *testing.T) {
	l := listen(t)
	s := serve(t, l, transport.ServerConfig{Handler: answer})
	const n = 500
	inUse := func() int64 { // may shrink: other tests have left garbage
		for range 4 { // pools and finalizers need more than one collection
			runtime.GC()
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapInuse + m.StackInuse)
	}
	before := inUse()
	for range n {
		p := rawClient(t, l)
		p.headers(1, false, p.requestTo("/bench/1x100"))
		p.data(1, true, prefixed(nil))
		require.NoError(t, p.say())
		assert.Equal(t, "0", p.status(1)["grpc-status"])
		p.reads, p.framer, p.hpack = nil, nil, nil // so that the test's end is small
	}
	require.Eventually(t, func() bool { all, _ := s.Conns(); return all == n }, patience, time.Millisecond)
	each := (inUse() - before) / n
	t.Logf("%d bytes", each)
	assert.Less(t, each, int64(20<<10))
}
