package transport

import (
	"context"
	"encoding/binary"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/buffers"
	"github.com/criproxy/criproxy/internal/recovery"
)

// A message is one that has come, whole.
type message struct {
	data       []byte
	pooled     *[]byte      // data, where that is to go back to buffers.Pool; nil: it is not
	reserved   *reservation // the memory that was taken for it; nil: none, it was short
	compressed bool
}

const (
	prefixLen    = 5         // before each message: whether it is compressed, and its length
	smallMessage = 4 << 10   // for which there is memory in any case
	worthPooling = 512       // shorter buffers are not worth keeping
	leastPooled  = 1<<10 + 1 // as [mem.NewBuffer] pools no shorter ones
)

// newMessage returns a message with room for n bytes.
func newMessage(n int) message {
	if n < worthPooling {
		return message{data: make([]byte, n)}
	}
	b := buffers.Pool.Get(max(n, leastPooled))
	*b = (*b)[:n]
	return message{data: *b, pooled: b}
}

// frame returns the message as a frame, which takes it over.
func (m message) frame() *codec.Frame {
	if m.pooled == nil {
		return codec.NewFrame(m.data)
	}
	bufs := mem.BufferSlice{mem.NewBuffer(m.pooled, buffers.Pool)}
	if r := m.reserved; r != nil {
		bufs = buffers.OnFree(bufs, r.release)
	}
	return codec.FrameOfBuffers(bufs)
}

// drop frees a message that will not be received.
func (m message) drop() { m.reserved.release() }

// An assembly puts the messages of a stream together. conn.mu guards it, except for the bytes
// of the message: the reader fills those with the lock released.
type assembly struct {
	prefix [prefixLen]byte
	got    int     // of the prefix; all of it: we are in a message
	msg    message // to be filled; without data: there is none
	fill   int     // what it has
	need   int     // what it has not, if it was reserved
	watch  watch   // over one that was reserved

	// A message for which there is no memory yet:
	want   int                // how long it is; 0: there is none
	raw    []byte             // what has come of it, and behind it: see park
	asking context.CancelFunc // of the goroutine that waits for memory; nil: there is none
}

// feed takes in what has come for s, behind which there are more bytes in the same frame. If
// it returns a length, it has come to a message that needs memory: the reader calls admit, and
// then feed with the rest.
func (c *conn) feed(s *stream, b []byte, behind int) (used, large int) {
	a := &s.assembly
	all := len(b)
	for len(b) > 0 {
		switch {
		case s.dead || s.ignore:
			c.received(len(b))
			return all, 0
		case a.want > 0:
			if c.park(s, b) {
				return all, 0
			}
		case a.msg.data != nil:
			n := copy(a.msg.data[a.fill:], b)
			c.filled(s, n)
			b = b[n:]
		default:
			n := copy(a.prefix[a.got:], b)
			a.got += n
			b = b[n:]
			s.unread += n // a message costs memory, even an empty one
			if a.got == prefixLen {
				if large = c.begin(s, len(b)+behind); large > 0 {
					return all - len(b), large
				}
			}
		}
	}
	return all, 0
}

// begin begins a message of which rest bytes are about to be read. If it returns a length, the
// caller has to reserve memory for the message.
func (c *conn) begin(s *stream, rest int) (large int) {
	a := &s.assembly
	n := int(binary.BigEndian.Uint32(a.prefix[1:]))
	if s.quiet && len(s.inbox) > 0 { // there was to be one
		s.quiet = false
		s.tell()
	}
	switch {
	case a.prefix[0] > 1:
		c.side.unwanted(s, status.Errorf(codes.Internal, "grpc: received unexpected payload format %d", a.prefix[0]))
	case n > c.cfg.maxMessage:
		c.side.unwanted(s, status.Errorf(codes.ResourceExhausted, "grpc: received message larger than max (%d vs. %d)", n, c.cfg.maxMessage))
	case n == 0:
		a.got = 0
		c.deliver(s, message{compressed: a.prefix[0] == 1})
	case n <= rest || n <= smallMessage:
		a.msg = newMessage(n)
		a.msg.compressed = a.prefix[0] == 1
	case s.large > 0: // one such message of a stream at a time
		a.want = n
	default:
		return n
	}
	return 0
}

// filled is called when n bytes have come for the message.
func (c *conn) filled(s *stream, n int) {
	a := &s.assembly
	a.fill += n
	if a.msg.reserved != nil {
		a.need -= n
		c.received(n)
	}
	if a.fill < len(a.msg.data) {
		return
	}
	m := a.msg
	a.msg, a.fill, a.got = message{}, 0, 0
	a.watch.stop()
	if m.reserved == nil {
		s.unread += len(m.data)
	}
	c.deliver(s, m)
}

// admit reserves memory for a message of n bytes. If there is not enough, a goroutine of its
// own waits for it. The reader calls admit, without the lock.
func (c *conn) admit(s *stream, n int) {
	var r *reservation
	var m message
	if c.cfg.budget.TryReserve(s.ctx, n) {
		r = &reservation{budget: c.cfg.budget, ctx: s.ctx, n: n}
		m = newMessage(n)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	a := &s.assembly
	switch {
	case s.dead || s.ignore:
		r.release()
	case r == nil:
		a.want = n
		a.ask(s)
	default:
		c.grant(s, m, r)
		c.credit(s)
	}
}

// grant lets a message come, for which there is memory. The caller calls credit, when it has fed
// what has come of it.
func (c *conn) grant(s *stream, m message, r *reservation) {
	a := &s.assembly
	m.reserved, m.compressed = r, a.prefix[0] == 1
	s.reserved = append(slices.DeleteFunc(s.reserved, (*reservation).released), r)
	a.msg, a.need = m, len(m.data)
	s.unread -= prefixLen
	c.received(prefixLen)
	a.watch.start(s)
}

// ask starts a goroutine that waits for memory for the message of s.
func (a *assembly) ask(s *stream) {
	if a.want == 0 || a.asking != nil || s.large > 0 || s.dead {
		return
	}
	ctx, cancel := context.WithCancel(s.ctx)
	a.asking = cancel
	n := a.want
	go func() {
		if recovery.Run("waiting for memory for a message", func() { s.conn.wait(ctx, s, n) }) != nil {
			_ = s.conn.nc.Close() // its state is unknown
		}
	}()
}

// wait waits for memory for a message of n bytes, and lets it come.
func (c *conn) wait(ctx context.Context, s *stream, n int) {
	err := c.cfg.budget.Reserve(ctx, n)
	var m message
	r := &reservation{budget: c.cfg.budget, ctx: s.ctx, n: n}
	if err == nil {
		m = newMessage(n)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	a := &s.assembly
	if a.asking != nil {
		a.asking()
		a.asking = nil
	}
	switch {
	case s.dead || s.ignore:
		if err == nil {
			r.release()
		}
		return
	case err != nil:
		c.side.unwanted(s, err)
	default:
		raw := s.unpark()
		c.received(-len(raw)) // feed counts it once more
		c.grant(s, m, r)
		c.feed(s, raw, 0)
		c.checkEnd(s)
		c.credit(s)
	}
	c.flush()
}

// drop forgets what has come of a message that will not be complete.
func (s *stream) drop() {
	a := &s.assembly
	a.msg.drop()
	a.watch.stop()
	if a.asking != nil {
		a.asking()
		a.asking = nil
	}
	s.unpark()
}
