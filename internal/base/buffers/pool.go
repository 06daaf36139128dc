// Package buffers manages the memory of messages: a pool, and a notice when a message is freed.
package buffers

import (
	"math/bits"
	"sync"

	"google.golang.org/grpc/mem"
)

// Pool is the pool for frames. Unlike [mem.DefaultBufferPool], it has four sizes for each power of
// two, so that a buffer is at most a quarter longer than its frame, and it does not clear buffers:
// the caller of Get must write before it reads.
var Pool mem.BufferPool = &pool{}

const (
	minPooled = 8  // log2 of the smallest size
	maxPooled = 24 // log2 of the largest size, that of CRI's longest messages
	perDouble = 4  // sizes for each power of two
)

type pool struct {
	sizes [(maxPooled-minPooled)*perDouble + 1]sync.Pool
}

// class returns the class of buffers that have room for n bytes, and their length, or class -1 if
// the pool has none.
func (*pool) class(n int) (class, size int) {
	switch {
	case n <= 1<<minPooled:
		return 0, 1 << minPooled
	case n > 1<<maxPooled:
		return -1, 0
	}
	double := bits.Len(uint(n-1)) - 1 // 1<<double < n <= 2<<double
	step := 1 << double / perDouble
	steps := (n - 1<<double + step - 1) / step // from 1 to perDouble
	return (double-minPooled)*perDouble + steps, 1<<double + steps*step
}

// Get returns a buffer of n bytes, with undefined content.
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

// Put takes back a buffer, which the caller must no longer use.
func (p *pool) Put(b *[]byte) {
	if class, size := p.class(cap(*b)); class >= 0 && cap(*b) == size {
		p.sizes[class].Put(b)
	}
}

// Fill returns what write appends to a buffer of the Pool that has room for n bytes. It may append more:
// then the result is in memory of its own.
func Fill(n int, write func(dst []byte) ([]byte, error)) (mem.BufferSlice, error) {
	buf := Pool.Get(n)
	out, err := write((*buf)[:0])
	if err != nil {
		Pool.Put(buf)
		return nil, err
	}
	if cap(out) != cap(*buf) { // write has outgrown buf
		Pool.Put(buf)
		buf = new([]byte)
	}
	*buf = out
	return mem.BufferSlice{mem.NewBuffer(buf, Pool)}, nil
}
