package capture

import (
	"encoding/binary"
	"sync"
	"sync/atomic"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/buffers"
)

// ring holds the latest records, in chunks that are only ever appended to. A
// reader of a chunk needs no lock up to where it is used, but for frames; a full
// chunk never changes again.
type ring struct {
	max        int // bytes of all chunks and frames
	maxPayload int // bytes of one message that are kept
	chunkSize  int

	missed atomic.Uint64 // records that followers did not get

	mu             sync.Mutex // guards what follows, for as long as it takes to copy a small record
	oldest, newest *chunk
	holding        *chunk // the oldest that may hold frames
	total          int    // bytes of chunks, and of frames
	held           int    // of frames
	seq            uint64
	spare          []byte        // of chunkSize, for the next chunk; nil if there is none
	wake           chan struct{} // closed when there is something new; nil if no follower waits
	closed         bool
}

// A chunk holds records in their order. Of a large message it holds the frame, not a
// copy: what is copied needs new memory each time.
type chunk struct {
	buf   []byte       // of fixed length
	used  atomic.Int64 // publishes what is before it in buf
	first uint64       // number of its first record

	// Guarded by the ring's mu.
	frames    []*codec.Frame // the latest of those that its records have; the earlier ones are
	forgotten int            // no longer there
	seen      bool           // by a follower, whose events may share buf for as long as they like
	next      *chunk         // nil for the newest
	gone      bool           // out of the ring: next leads no further
}

const (
	chunks    = 128 // in a ring, if all are of equal size and hold no frames
	maxFrames = 256 // in a chunk: their place takes a byte
)

// holdable is how much of the memory may be in large messages. Most are lists, which come every
// second: what else happens is small, and is remembered for longer.
func (r *ring) holdable() int { return r.max / 2 }

func newRing(size int) *ring {
	r := &ring{max: size, maxPayload: size / 4, chunkSize: max(size/chunks, 4<<10)}
	r.link(r.fresh())
	return r
}

// link appends a chunk.
func (r *ring) link(buf []byte) {
	c := &chunk{buf: buf, first: r.seq + 1}
	if r.newest == nil {
		r.oldest, r.holding = c, c
	} else {
		r.newest.next = c
	}
	r.newest = c
	r.count(len(buf))
}

// count adds bytes to the total, and forgets what is oldest if they are too many.
func (r *ring) count(n int) {
	for r.total += n; r.total > r.max && r.oldest != r.newest; {
		old := r.oldest
		for len(old.frames) > 0 {
			r.forget(old)
		}
		if r.holding == old {
			r.holding = old.next
		}
		r.oldest, old.next, old.gone = old.next, nil, true // a follower that still reads it holds no other
		r.total -= len(old.buf)
		if !old.seen && len(old.buf) == r.chunkSize {
			r.spare = old.buf
		}
	}
}

// hold adds a frame to the newest chunk, and forgets the oldest frames if they are too many. It
// returns the frame's place.
func (r *ring) hold(frame *codec.Frame) byte {
	c := r.newest
	c.frames = append(c.frames, frame)
	place := byte(c.forgotten + len(c.frames) - 1)
	held := buffers.Held(frame.Buffers())
	for r.held += held; r.held > r.holdable() && (r.holding != c || len(c.frames) > 1); {
		if len(r.holding.frames) > 0 {
			r.forget(r.holding)
		} else {
			r.holding = r.holding.next
		}
	}
	r.count(held)
	return place
}

// forget gives the oldest frame of a chunk back.
func (r *ring) forget(c *chunk) {
	n := buffers.Held(c.frames[0].Buffers())
	r.held -= n
	r.total -= n
	c.frames[0].Free()
	c.frames = c.frames[1:]
	c.forgotten++
}

// frame returns a reference to a frame of c, nil if it is no longer held.
func (r *ring) frame(c *chunk, place byte) *codec.Frame {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := int(place) - c.forgotten; i >= 0 {
		return c.frames[i].Ref()
	}
	return nil
}

// fresh returns memory for a chunk. It need not be zeroed: nothing reads beyond what is used.
func (r *ring) fresh() []byte {
	if buf := r.spare; buf != nil {
		r.spare = nil
		return buf
	}
	return make([]byte, r.chunkSize)
}

// isLarge reports whether a record of n bytes is taken over, not copied.
func (r *ring) isLarge(n int) bool { return n > r.chunkSize/2 }

// put copies a finished record into the ring, or takes it over if it is large: it
// becomes a chunk of its own. With a frame, which it takes over, the last byte of the
// record becomes its place in the chunk.
func (r *ring) put(record []byte, frame *codec.Frame) {
	binary.LittleEndian.PutUint32(record[recordLen:], uint32(len(record)))
	large := r.isLarge(len(record))
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		if frame != nil {
			frame.Free()
		}
		return
	}
	c := r.newest
	switch {
	case large:
		r.link(record)
	case int(c.used.Load())+len(record) > len(c.buf), frame != nil && c.forgotten+len(c.frames) == maxFrames:
		r.link(r.fresh())
	}
	c = r.newest
	r.seq++
	binary.LittleEndian.PutUint64(record[recordSeq:], r.seq)
	if frame != nil {
		record[len(record)-1] = r.hold(frame)
	}
	at := int(c.used.Load())
	if !large {
		copy(c.buf[at:], record)
	}
	c.used.Store(int64(at + len(record)))
	if r.wake != nil {
		close(r.wake)
		r.wake = nil
	}
}

// close lets followers end when they have read all.
func (r *ring) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.wake != nil {
		close(r.wake)
		r.wake = nil
	}
}
