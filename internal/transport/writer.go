package transport

import (
	"runtime"

	"golang.org/x/net/http2"

	"github.com/criproxy/criproxy/internal/buffers"
)

const (
	// highWater is how many bytes may wait to be written before senders of messages have to
	// wait as well.
	highWater = 64 << 10
	// copied is the size up to which what is sent goes into the buffer; what is longer is written
	// from where it is.
	copied = 16 << 10
	// batch is how much flushSoon writes at once, and does not wait for more.
	batch = 2 * copied
	// longFrame bounds frames, of which one may have to be copied.
	longFrame = 32 << 10
	// mostFrames is how many frames are written at once.
	mostFrames = 8
	// fair is how often a goroutine writes for others before it goes on with its own.
	fair = 4
	// keep is the size up to which a buffer is kept while a connection says nothing.
	keep = 4 << 10
)

// flush writes the buffer. If another goroutine is writing, that one writes the buffer as well,
// and flush returns at once. It does not wait for the peer. c.mu is held; it is released
// meanwhile.
func (c *conn) flush() {
	for rounds := 0; len(c.out) > 0 && !c.busy; rounds++ {
		if c.broken != nil {
			c.out = nil
			return
		}
		b := c.swap()
		n, err := 0, error(nil)
		if rounds < fair {
			c.mu.Unlock()
			n, err = c.raw.write(b)
			c.mu.Lock()
		}
		if err == nil && n < len(b) {
			go c.drain(b, b[n:])
			return
		}
		c.wrote(b, err)
	}
}

// flushWith is flush for one of several goroutines that are woken together: it lets the others
// run first, so that their frames go out in the same write. c.mu is held; it is released
// meanwhile.
func (c *conn) flushWith(others bool) {
	if others && !c.busy && len(c.out) < copied {
		c.mu.Unlock()
		runtime.Gosched()
		c.mu.Lock()
	}
	c.flush()
}

// flushSoon is flush for frames that others are likely to follow: it lets the runnable goroutines
// run first, unless there is enough to write. c.mu is held.
func (c *conn) flushSoon() {
	switch {
	case len(c.out) >= batch:
		c.flush()
	case !c.soon && !c.busy && len(c.out) > 0:
		c.soon = true
		go func() {
			runtime.Gosched()
			c.mu.Lock()
			defer c.mu.Unlock()
			c.soon = false
			c.flush()
		}()
	}
}

// grow makes room for n more bytes in the buffer. A connection keeps short buffers. A longer one
// comes from the pool of messages, and putBack returns it once it has been written. c.mu is held.
func (c *conn) grow(n int) {
	need := len(c.out) + n
	switch {
	case need <= cap(c.out):
		return
	case need <= keep:
		c.out = append(make([]byte, 0, min(2*need, keep)), c.out...)
		return
	}
	if len(c.out) > 0 {
		need = max(need, batch+keep) // there is more behind: flushSoon writes at batch
	}
	b := append((*buffers.Pool.Get(need))[:0], c.out...)
	c.putBack(c.out)
	c.out = b
}

// putBack keeps a buffer for later, or gives it back. c.mu is held.
func (c *conn) putBack(b []byte) {
	if b = b[:0]; cap(b) > keep {
		buffers.Pool.Put(&b)
	} else if c.spare == nil {
		c.spare = b
	}
}

// swap takes the buffer out to be written. No other goroutine writes until wrote is called.
func (c *conn) swap() []byte {
	b := c.out
	c.out, c.spare = c.spare[:0], nil
	c.busy, c.answers = true, 0
	c.pongs.written()
	return b
}

// wrote ends the write of b, which swap returned.
func (c *conn) wrote(b []byte, err error) {
	c.busy = false
	c.putBack(b)
	if err != nil && c.broken == nil {
		c.broken = err
		c.out = nil
		c.mu.Unlock()
		_ = c.nc.Close() // the reader notices, and ends all
		c.mu.Lock()
	}
	if c.idle != nil && len(c.out) == 0 {
		close(c.idle)
		c.idle = nil
	}
	c.nudge()
}

// drain writes the rest of b, waiting for the peer, and then what other goroutines have appended
// meanwhile. Only senders with more messages wait for it.
func (c *conn) drain(b, rest []byte) {
	_, err := c.nc.Write(rest)
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.wrote(b, err); len(c.out) > 0 && !c.busy && c.broken == nil; c.wrote(b, err) {
		b = c.swap()
		c.mu.Unlock()
		_, err = c.nc.Write(b)
		c.mu.Lock()
	}
}

// untilIdle returns a channel that is closed when all has been written, nil if it has been.
func (c *conn) untilIdle() <-chan struct{} {
	if !c.busy {
		return nil
	}
	if c.idle == nil {
		c.idle = make(chan struct{})
	}
	return c.idle
}

// writeData writes the buffer, and then n bytes of m, in frames, without copying them. If the
// peer does not take all of it at once, drain writes the rest up to the end of a frame, and the
// bytes behind that stay in m. The caller has checked that no goroutine is writing. c.mu is held;
// it is released meanwhile.
func (c *conn) writeData(s *stream, m *outgoing, n int) {
	var before [mostFrames + 1]struct { // each frame, and behind the last one
		m            outgoing
		parts, bytes int
	}
	head := c.swap()
	parts, bytes, frames := append(c.parts[:0], head), len(head), 0
	for n > 0 {
		before[frames].m, before[frames].parts, before[frames].bytes = *m, len(parts), bytes
		k := min(n, c.peerFrame, longFrame)
		parts = append(parts, appendFrame(c.heads[frames][:0], k, http2.FrameData, m.flags(k), s.id))
		parts = m.slices(parts, k)
		c.use(s, k)
		n -= k
		bytes += frameHeaderLen + k
		frames++
	}
	before[frames].m, before[frames].parts, before[frames].bytes = *m, len(parts), bytes
	c.mu.Unlock()
	wrote, err := c.raw.writev(parts)
	c.mu.Lock()
	var rest []byte
	if wrote < bytes && err == nil {
		cut := 0
		for before[cut].bytes <= wrote {
			cut++
		}
		rest = join(parts[:before[cut].parts], wrote)
		c.use(s, m.left-before[cut].m.left)
		*m = before[cut].m
	}
	clear(parts) // they are others'
	c.parts = parts[:0]
	if len(rest) > 0 {
		go c.drain(head, rest)
		return
	}
	c.wrote(head, err)
}

// join returns all parts in one, but for the first skip bytes.
func join(parts [][]byte, skip int) []byte {
	n := -skip
	for _, p := range parts {
		n += len(p)
	}
	all := make([]byte, 0, n)
	for _, p := range parts {
		if skip >= len(p) {
			skip -= len(p)
			continue
		}
		all = append(all, p[skip:]...)
		skip = 0
	}
	return all
}
