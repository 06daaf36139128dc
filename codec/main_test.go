package codec_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"
	"google.golang.org/grpc/mem"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/testing/prototest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	compile = prototest.Compile
	parse   = prototest.Marshal
)

// A pool counts the buffers that are out. It is for buffers that gRPC deems
// large enough to be pooled, that is, of more than 1 KiB.
type pool struct {
	mu  sync.Mutex
	out map[*[]byte]bool
	t   testing.TB
}

func newPool(t testing.TB) *pool { return &pool{out: map[*[]byte]bool{}, t: t} }

func (p *pool) Get(n int) *[]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := make([]byte, n)
	p.out[&b] = true
	return &b
}

func (p *pool) Put(b *[]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	assert.True(p.t, p.out[b], "a buffer came back that was not out")
	delete(p.out, b)
	clear(*b) // a frame that still uses it would fail its test
}

func (p *pool) Out() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.out)
}

// frame returns a frame of n bytes of the pool, all of them c.
func (p *pool) frame(c byte, n int) *codec.Frame {
	b := p.Get(n)
	for i := range *b {
		(*b)[i] = c
	}
	return codec.FrameOfBuffers(mem.BufferSlice{mem.NewBuffer(b, p)})
}
