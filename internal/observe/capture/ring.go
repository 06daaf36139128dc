package capture

import (
	"encoding/binary"
	"sync"
	"sync/atomic"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/buffers"
)

// ring holds the latest records, in chunks that are only ever appended to. Followers read the used
// part of a chunk without a lock, but need the lock for frames. A full chunk never changes again.
type ring struct {
	max        int // upper bound for the bytes of all chunks and frames
	maxPayload int // upper bound for the kept bytes of one message
	chunkSize  int
	holdFrom   int // length of a message from which the ring holds its frame instead of a copy

	missed atomic.Uint64 // records that followers did not get

	mu             sync.Mutex // guards the fields below; held at most while a small record is copied
	oldest, newest *chunk
	holding        *chunk        // the oldest chunk that may hold frames
	total          int           // bytes of chunks and frames
	held           int           // bytes of frames
	seq            uint64        // number of the latest record
	spare          *chunk        // with a buf of length chunkSize, for the next chunk; nil if there is none
	wake           chan struct{} // closed when there is a new record; nil if no follower waits
	closed         bool
}

// A chunk holds records in order. Of a large message it holds the frame instead of a copy, which
// would need new memory each time.
type chunk struct {
	buf   []byte       // of fixed length
	used  atomic.Int64 // bytes of buf that readers may read
	first uint64       // number of its first record

	// Guarded by the ring's mu.
	frames    []codec.Frame // the frames of its records
	forgotten int           // how many of these were forgotten, always the oldest
	readers   int           // followers that read it now
	seen      bool          // a follower has read it whose events may refer to buf for any time
	next      *chunk        // nil for the newest
	gone      bool          // no longer in the ring; next is nil
}

const (
	chunks    = 128 // in a ring, if all have the same size and hold no frames
	maxFrames = 256 // in a chunk: a frame's place takes one byte
)

// holdable returns how much of the memory large messages may take. Most of these are lists, which
// come every second; other events are small, so the ring remembers them for longer. A message that fits is held.
func (r *ring) holdable() int { return r.max / 3 }

func newRing(size int) *ring {
	r := &ring{max: size, maxPayload: size / 3, chunkSize: max(size/chunks, 4<<10), holdFrom: maxCopied}
	if size >= 1<<20 { // a smaller one has no room for many frames
		r.holdFrom = min(r.holdFrom, r.chunkSize/2-256) // a copy fits in a chunk with others, and takes no memory of its own
	}
	r.link(r.fresh())
	return r
}

// link appends a chunk, whose first record is the next one.
func (r *ring) link(c *chunk) {
	c.first = r.seq + 1
	if r.newest == nil {
		r.oldest, r.holding = c, c
	} else {
		r.newest.next = c
	}
	r.newest = c
	r.count(len(c.buf))
}

// count adds n bytes to the total. If there are too many, it forgets large messages, and removes the oldest chunks only if
// chunks take more than their share.
func (r *ring) count(n int) {
	for r.total += n; r.total > r.max; {
		switch {
		case r.oldest != r.newest && r.total-r.held > r.max-r.holdable():
			r.remove()
		case r.held > 0:
			r.forget()
		default:
			return
		}
	}
}

// remove removes the oldest chunk, which is not the newest.
func (r *ring) remove() {
	old := r.oldest
	for len(old.frames) > old.forgotten {
		r.forget()
	}
	if r.holding == old {
		r.holding = old.next
	}
	r.oldest, old.next, old.gone = old.next, nil, true // so that a follower that still reads it keeps no other chunk
	r.total -= len(old.buf)
	if !old.seen && old.readers == 0 && len(old.buf) == r.chunkSize {
		r.spare = old
	}
}

// hold adds a frame to the newest chunk, and forgets the oldest frames if they take too much memory.
// It returns the frame's place.
func (r *ring) hold(frame codec.Frame) byte {
	c := r.newest
	c.frames = append(c.frames, frame)
	place := byte(len(c.frames) - 1)
	held := buffers.Held(frame.Buffers())
	for r.held += held; r.held > r.holdable() && r.held > held; {
		r.forget()
	}
	r.count(held)
	return place
}

// forget frees the oldest frame. There must be one.
func (r *ring) forget() {
	for r.holding.forgotten == len(r.holding.frames) {
		r.holding = r.holding.next
	}
	f := &r.holding.frames[r.holding.forgotten]
	n := buffers.Held(f.Buffers())
	r.held -= n
	r.total -= n
	f.Free()
	r.holding.forgotten++
}

// frame returns a new reference to a frame of c, or nil if the frame was forgotten.
func (r *ring) frame(c *chunk, place byte) *codec.Frame {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := int(place); i >= c.forgotten {
		return c.frames[i].Ref()
	}
	return nil
}

// fresh returns a chunk. It may hold old data: followers read only the used part.
func (r *ring) fresh() *chunk {
	c := r.spare
	if c == nil {
		return &chunk{buf: make([]byte, r.chunkSize)}
	}
	r.spare = nil
	c.used.Store(0)
	c.frames, c.forgotten, c.gone = c.frames[:0], 0, false
	return c
}

// isLarge reports whether a record of n bytes becomes a chunk of its own, without a copy.
func (r *ring) isLarge(n int) bool { return n > r.chunkSize/2 }

// put copies a finished record into the ring. It takes over a large record, which becomes a chunk of
// its own. It also takes over frame, unless that is empty, and sets the last byte of the record to the
// frame's place in the chunk.
func (r *ring) put(record []byte, frame codec.Frame) {
	framed := len(frame.Buffers()) > 0
	large := r.isLarge(len(record))
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		frame.Free()
		return
	}
	c := r.newest
	switch {
	case large:
		r.link(&chunk{buf: record})
	case int(c.used.Load())+len(record) > len(c.buf), framed && len(c.frames) == maxFrames:
		r.link(r.fresh())
	}
	c = r.newest
	r.seq++
	sealRecord(record, r.seq)
	if framed {
		record[len(record)-1] = r.hold(frame)
	}
	at := int(c.used.Load())
	if !large {
		copy(c.buf[at:], record)
	}
	c.used.Store(int64(at + len(record)))
	r.notify()
}

// close makes followers end when they have read all records.
func (r *ring) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.notify()
}

// notify wakes the followers that wait. r.mu is held.
func (r *ring) notify() {
	if r.wake != nil {
		close(r.wake)
		r.wake = nil
	}
}

// sealRecord completes a record of [appendRecord].
func sealRecord(record []byte, seq uint64) {
	binary.LittleEndian.PutUint32(record[recordLen:], uint32(len(record)))
	binary.LittleEndian.PutUint64(record[recordSeq:], seq)
}

func recordLength(records []byte) int { return int(binary.LittleEndian.Uint32(records[recordLen:])) }
