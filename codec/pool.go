package codec

import (
	"math/bits"
	"sync"

	"google.golang.org/grpc/mem"
)

// Pool is the memory of frames that are made here. Unlike [mem.DefaultBufferPool] it
// has a size for each power of two, so that who keeps a frame keeps at most twice its
// length, and hands out buffers as they are: whoever gets one writes before reading.
var Pool mem.BufferPool = &pool{}

const (
	minPooled = 8  // log2 of the smallest buffers
	maxPooled = 24 // and of the largest, the size of CRI's messages
)

type pool struct {
	sizes [maxPooled - minPooled + 1]sync.Pool
}

// size returns which buffers have room for n bytes; -1 if none have.
func (*pool) size(n int) int {
	class := max(bits.Len(uint(max(n, 1)-1)), minPooled) - minPooled
	if class > maxPooled-minPooled {
		return -1
	}
	return class
}

// Get returns a buffer of n bytes, whose content is anything.
func (p *pool) Get(n int) *[]byte {
	class := p.size(n)
	if class < 0 {
		b := make([]byte, n)
		return &b
	}
	if b, ok := p.sizes[class].Get().(*[]byte); ok {
		*b = (*b)[:n]
		return b
	}
	b := make([]byte, n, 1<<(class+minPooled))
	return &b
}

// Put takes a buffer back that nobody uses any more.
func (p *pool) Put(b *[]byte) {
	if class := p.size(cap(*b)); class >= 0 && cap(*b) == 1<<(class+minPooled) {
		p.sizes[class].Put(b)
	}
}
