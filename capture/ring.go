package capture

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
)

// ring holds the latest records, in chunks that are only ever appended to. A
// reader of a chunk needs no lock up to where it is used; a full chunk never
// changes again.
type ring struct {
	max       int // bytes of all chunks
	chunkSize int

	missed atomic.Uint64 // records that followers did not get

	mu             sync.Mutex // guards what follows, for as long as it takes to copy a small record
	oldest, newest *chunk
	total          int
	seq            uint64
	wake           chan struct{} // closed when there is something new; nil if nobody waits
	closed         bool
}

type chunk struct {
	buf   []byte // of fixed length
	used  atomic.Int64
	first uint64 // number of its first record
	next  *chunk // guarded by the ring's mu, like gone
	gone  bool   // out of the ring: what follows is no longer known
}

const chunks = 32 // in a ring, if all are of equal size

func newRing(size int) *ring {
	r := &ring{max: size, chunkSize: max(size/chunks, 4<<10)}
	r.grow(0)
	return r
}

// grow makes room for a record of n bytes, and forgets what is oldest.
func (r *ring) grow(n int) {
	r.link(&chunk{buf: make([]byte, max(n, r.chunkSize))})
}

func (r *ring) link(c *chunk) {
	c.first = r.seq + 1
	if r.newest == nil {
		r.oldest = c
	} else {
		r.newest.next = c
	}
	r.newest = c
	r.total += len(c.buf)
	for r.total > r.max && r.oldest != c {
		old := r.oldest
		r.oldest, old.next, old.gone = old.next, nil, true // who still reads it holds no other
		r.total -= len(old.buf)
	}
}

// isLarge reports whether a record of n bytes is taken over, not copied.
func (r *ring) isLarge(n int) bool { return n > r.chunkSize/2 }

// put copies a finished record into the ring, or takes it over if it is large: it
// becomes a chunk of its own.
func (r *ring) put(record []byte) {
	binary.LittleEndian.PutUint32(record[recordLen:], uint32(len(record)))
	large := r.isLarge(len(record))
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return
	}
	if large {
		r.link(&chunk{buf: record})
	} else if int(r.newest.used.Load())+len(record) > len(r.newest.buf) {
		r.grow(len(record))
	}
	r.seq++
	binary.LittleEndian.PutUint64(record[recordSeq:], r.seq)
	c := r.newest
	at := int(c.used.Load())
	if !large {
		copy(c.buf[at:], record)
	}
	c.used.Store(int64(at + len(record)))
	if r.wake != nil {
		close(r.wake)
		r.wake = nil
	}
	r.mu.Unlock()
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
