package buffers

import (
	"runtime"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/mem"
)

// Held returns how much memory bufs keep from being used for anything else, in bytes: their
// length, and what is left over of the memory that they are in.
func Held(bufs mem.BufferSlice) int {
	n := 0
	for _, b := range bufs {
		n += cap(b.ReadOnlyData())
	}
	return n
}

// Head returns references to the buffers that the first n bytes are in. It copies none, so
// it may return more than n bytes. The caller frees it.
func Head(bufs mem.BufferSlice, n int) mem.BufferSlice {
	var head mem.BufferSlice
	for _, b := range bufs {
		if n <= 0 {
			break
		}
		b.Ref()
		head = append(head, b)
		n -= b.Len()
	}
	return head
}

// OnFree takes bufs over and returns buffers in their place. It calls done once, when the
// last reference to these is freed: the caller's, or that of gRPC, which holds what was sent
// until it is on the wire. If a holder forgets to free one, it calls done when the garbage
// collector has found that out. done may be called before OnFree returns, and in any
// goroutine.
func OnFree(bufs mem.BufferSlice, done func()) mem.BufferSlice {
	h := &holder{done: sync.OnceFunc(done)}
	runtime.AddCleanup(h, func(done func()) { done() }, h.done)
	h.left.Store(1)                            // until all pieces are counted
	pieces := make(mem.BufferSlice, len(bufs)) // those of bufs may be others' as well
	for i, b := range bufs {
		data := b.ReadOnlyData()
		if mem.IsBelowBufferPoolingThreshold(cap(data)) {
			pieces[i] = b // gRPC does not count its holders, and it is small
			continue
		}
		h.left.Add(1)
		pieces[i] = mem.NewBuffer(&data, &piece{b, h})
	}
	h.freed()
	return pieces
}

// holder counts the buffers that are not freed yet.
type holder struct {
	left atomic.Int32
	done func()
}

func (h *holder) freed() {
	if h.left.Add(-1) == 0 {
		h.done()
	}
}

// piece is where one buffer goes when it is freed. It is a pool for one.
type piece struct {
	mem.Buffer
	holder *holder
}

// Get is not called: nothing is taken from here.
func (p *piece) Get(n int) *[]byte { return mem.DefaultBufferPool().Get(n) }

// Put gives the piece back to where it is from.
func (p *piece) Put(*[]byte) {
	p.Free()
	p.holder.freed()
}
