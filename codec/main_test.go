package codec_test

import (
	"context"
	"sync"
	"testing"

	"github.com/bufbuild/protocompile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/criproxy/criproxy/codec"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// compile returns the file called schema.proto, or what else is first.
func compile(t testing.TB, sources map[string]string, first string) protoreflect.FileDescriptor {
	t.Helper()
	c := protocompile.Compiler{Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{
		Accessor: protocompile.SourceAccessorFromMap(sources),
	})}
	files, err := c.Compile(context.Background(), first)
	require.NoError(t, err)
	return files[0]
}

func parse(t testing.TB, md protoreflect.MessageDescriptor, text string) []byte {
	t.Helper()
	m := dynamicpb.NewMessage(md)
	require.NoError(t, prototext.Unmarshal([]byte(text), m))
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	require.NoError(t, err)
	return b
}

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
	clear(*b) // whoever still looks at it sees it
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
