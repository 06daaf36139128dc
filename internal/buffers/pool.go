// Package buffers is the memory of messages: a pool, and a count of the holders of each buffer.
package buffers

import (
	"math/bits"
	"sync"

	"google.golang.org/grpc/mem"
)

// Pool is the memory of frames that are made here. Unlike [mem.DefaultBufferPool] it
// has four sizes for each power of two, so that a holder of a frame keeps at most a quarter
// more than its length, and hands out buffers as they are: whoever gets one writes before
// reading.
var Pool mem.BufferPool = &pool{}

const (
	minPooled = 8  // log2 of the smallest buffers
	maxPooled = 24 // and of the largest, the size of CRI's messages
	perDouble = 4  // sizes, up to twice a size
)

type pool struct {
	sizes [(maxPooled-minPooled)*perDouble + 1]sync.Pool
}

// class returns which buffers have room for n bytes, and how long these are; -1 if none
// have.
func (*pool) class(n int) (class, size int) {
	switch {
	case n <= 1<<minPooled:
		return 0, 1 << minPooled
	case n > 1<<maxPooled:
		return -1, 0
	}
	double := bits.Len(uint(n-1)) - 1 // n is over 1<<double, and not over twice that
	step := 1 << double / perDouble
	steps := (n - 1<<double + step - 1) / step // from 1 to perDouble
	return (double-minPooled)*perDouble + steps, 1<<double + steps*step
}

// Get returns a buffer of n bytes, whose content is anything.
func (p *pool) Get(n int) *[]byte {
	class, size := p.class(n)
	if class < 0 {
		b := make([]byte, n)
		return &b
	}
	if b, ok := p.sizes[class].Get().(*[]byte); ok {
		*b = (*b)[:n]
		return b
	}
	b := make([]byte, n, size)
	return &b
}

// Put takes a buffer back that is no longer used.
func (p *pool) Put(b *[]byte) {
	if class, size := p.class(cap(*b)); class >= 0 && cap(*b) == size {
		p.sizes[class].Put(b)
	}
}
