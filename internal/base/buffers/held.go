package buffers

import (
	"runtime"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/mem"
)

// Held returns how many bytes of memory bufs hold: their length, and the unused rest of the memory
// that they are in.
func Held(bufs mem.BufferSlice) int {
	n := 0
	for _, b := range bufs {
		n += cap(b.ReadOnlyData())
	}
	return n
}

// Head returns references to the buffers that hold the first n bytes of bufs. It does not copy, so
// the buffers may hold more than n bytes. The caller must free them.
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

// OnFree takes over bufs and returns buffers that replace them. It calls done once, when the last
// reference to them is freed: the caller's, or that of gRPC, which holds a sent message until it has
// been written. If a holder never frees its reference, the garbage collector causes the call. done
// may be called before OnFree returns, and in any goroutine.
func OnFree(bufs mem.BufferSlice, done func()) mem.BufferSlice {
	h := &holder{done: sync.OnceFunc(done)}
	runtime.AddCleanup(h, func(done func()) { done() }, h.done)
	h.left.Store(1)                            // so that done waits until all pieces are counted
	pieces := make(mem.BufferSlice, len(bufs)) // a new slice: other holders may share bufs
	for i, b := range bufs {
		data := b.ReadOnlyData()
		if mem.IsBelowBufferPoolingThreshold(cap(data)) {
			pieces[i] = b // gRPC does not count references to small buffers
			continue
		}
		h.left.Add(1)
		pieces[i] = mem.NewBuffer(&data, &piece{b, h})
	}
	h.freed()
	return pieces
}

// holder counts the buffers that have not been freed.
type holder struct {
	left atomic.Int32
	done func()
}

func (h *holder) freed() {
	if h.left.Add(-1) == 0 {
		h.done()
	}
}

// piece is the pool to which one buffer returns when it is freed.
type piece struct {
	mem.Buffer
	holder *holder
}

// Get is never called: it only implements [mem.BufferPool].
func (p *piece) Get(n int) *[]byte { return mem.DefaultBufferPool().Get(n) }

// Put frees the original buffer, and counts that.
func (p *piece) Put(*[]byte) {
	p.Free()
	p.holder.freed()
}
