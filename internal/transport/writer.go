package transport

import (
	"runtime"

	"golang.org/x/net/http2"

	"github.com/criproxy/criproxy/internal/base/buffers"
)

const (
	// highWater is how many bytes may wait to be written before senders must wait.
	highWater = 64 << 10
	// copied is the size up to which messages are copied into the buffer; longer ones are written
	// without a copy.
	copied = 16 << 10
	// batch is how many bytes make flushSoon write at once, without waiting for more.
	batch = 2 * copied
	// longFrame bounds the length of DATA frames, because one of them may have to be copied.
	longFrame = 32 << 10
	// mostFrames is how many frames one system call writes at most.
	mostFrames = 8
	// fair is how many writes a goroutine does, partly for others, before it leaves the rest to writeRest.
	fair = 4
	// keep is the largest buffer that an idle connection keeps.
	keep = 4 << 10
)

// Writing. A goroutine that writes takes the buffer with swap, which sets busy, writes it without mu, and ends with wrote, which
// clears busy. Frames that others append meanwhile are in a new buffer, and flush writes these as well, for some rounds. If
// the kernel does not take all, or there is still more, writeRest goes on in a goroutine of its own. busy stays set while it
// waits for the peer, so the buffer fills up to highWater, and then senders wait.

// flush writes the buffer. If another goroutine is writing, that one also writes the buffer, and
// flush returns at once. It does not wait for the peer. c.mu is held; flush releases it while it
// writes.
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
			go c.writeRest(b, b[n:])
			return
		}
		c.wrote(b, err)
	}
}

// flushWith is flush for one of several goroutines that were woken together. If others is set, it
// lets them run first, so that their frames go out in the same write. c.mu is held; flushWith
// releases it meanwhile.
func (c *conn) flushWith(others bool) {
	if others && !c.busy && len(c.out) < copied {
		c.mu.Unlock()
		runtime.Gosched()
		c.mu.Lock()
	}
	c.flush()
}

// flushSoon is flush for frames that more frames are likely to follow: it lets other runnable
// goroutines run first, unless there is enough to write. c.mu is held.
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
		need = max(need, batch+keep) // more frames follow: flushSoon writes at batch
	}
	b := append((*buffers.Pool.Get(need))[:0], c.out...)
	c.putBack(c.out)
	c.out = b
}

// putBack keeps a buffer as the spare one, or returns it to the pool. c.mu is held.
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

// wrote ends the write of b, which swap returned. After an error nothing can be written, and the reader ends the calls. c.mu is
// held; wrote releases it while it closes the connection.
func (c *conn) wrote(b []byte, err error) {
	c.busy = false
	c.putBack(b)
	if err != nil && c.broken == nil {
		c.broken = err
		c.out = nil
		c.mu.Unlock()
		_ = c.nc.Close() // the reader notices, and ends the calls
		c.mu.Lock()
	}
	if c.idle != nil && len(c.out) == 0 {
		close(c.idle)
		c.idle = nil
	}
	c.nudge()
}

// writeRest writes rest, the end of b, waiting for the peer, and then the frames that other goroutines
// have appended meanwhile. Only goroutines that want to send more wait for it.
func (c *conn) writeRest(b, rest []byte) {
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

// untilIdle returns a channel that is closed when all frames have been written, or nil if they have
// been.
func (c *conn) untilIdle() <-chan struct{} {
	if !c.busy {
		return nil
	}
	if c.idle == nil {
		c.idle = make(chan struct{})
	}
	return c.idle
}

// writeData writes the buffer, and then n bytes of m as DATA frames, without copying them. If the
// kernel does not take all of it at once, writeRest writes the rest up to the end of a frame, and the
// bytes after that stay in m. The caller has checked that no goroutine is writing. c.mu is held;
// writeData releases it while it writes.
func (c *conn) writeData(s *stream, m *outgoing, n int) {
	var before [mostFrames + 1]struct { // before each frame, and after the last one
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
	clear(parts) // the bytes belong to the caller
	c.parts = parts[:0]
	if len(rest) > 0 {
		go c.writeRest(head, rest)
		return
	}
	c.wrote(head, err)
}

// join returns all parts as one slice, without the first skip bytes.
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
