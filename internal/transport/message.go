package transport

import (
	"context"
	"encoding/binary"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/buffers"
	"github.com/criproxy/criproxy/internal/base/recovery"
)

// A message is a received gRPC message. Its memory belongs to whoever has the message: first the assembly, then the inbox, then
// the receiver, which turns it into a frame. Each of them must pass it on or drop it, because the budget counts it.
type message struct {
	data       []byte
	pooled     *[]byte      // data, to return to buffers.Pool; nil: data is not pooled
	reserved   *reservation // the budget's memory for it; nil: none, the message is short
	compressed bool
}

const (
	prefixLen    = 5         // prefix of each message: whether it is compressed, and its length
	smallMessage = 4 << 10   // messages up to this length need no reservation
	worthPooling = 512       // shorter buffers are not worth pooling
	leastPooled  = 1<<10 + 1 // because [mem.NewBuffer] pools no shorter ones
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

// frame returns the message as a frame, which owns the message's memory from then on.
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

// drop frees a message that no call will receive.
func (m message) drop() { m.reserved.release() }

// An assembly reassembles the messages of a stream. conn.mu guards it, except for the bytes of
// the message: the reader fills those without holding the lock. It is in one of three states:
//
//	state    it has             bytes that arrive go to    it ends when
//	prefix   got < prefixLen    prefix                     begin knows the length of the message
//	filling  msg.data           msg.data                   filled has the last byte, and delivers the message
//	waiting  want > 0           raw, as far as they fit    grant has memory for the message
//
// begin goes on with filling if the message is short, or is whole in its frame. Otherwise the message needs a reservation:
// then admit goes on with filling if there is memory now, or with waiting. A stream holds one reservation at a time for a
// message that no call has received, so the next long message waits for that call.
type assembly struct {
	prefix [prefixLen]byte
	got    int     // bytes of prefix; prefixLen: the reader is within a message
	msg    message // the message being filled; without data: there is none
	fill   int     // bytes of msg that have arrived
	need   int     // bytes of msg that are missing, if its memory is reserved
	watch  watch   // over msg, if its memory is reserved

	// A message for which there is no memory yet:
	want   int                // its length; 0: there is none
	raw    []byte             // its beginning, and bytes that follow it: see park
	asking context.CancelFunc // cancels the goroutine that waits for memory; nil: there is none
}

// feed takes in the bytes b of s; rest is how many bytes of the same frame follow them. If feed
// returns a length large, it has reached a message for which memory must be reserved: the reader
// calls admit, and then feed with the rest.
func (c *conn) feed(s *stream, b []byte, rest int) (used, large int) {
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
				if large = c.begin(s, len(b)+rest); large > 0 {
					return all - len(b), large
				}
			}
		}
	}
	return all, 0
}

// begin begins a message; the frame holds rest more bytes. If begin returns a length large, the
// caller must reserve memory for the message.
func (c *conn) begin(s *stream, rest int) (large int) {
	a := &s.assembly
	n := int(binary.BigEndian.Uint32(a.prefix[1:]))
	if s.quiet && len(s.inbox) > 0 { // only one message was expected
		s.quiet = false
		s.wakeReceiver()
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
	case s.large > 0: // only one message of a stream may hold a reservation
		a.want = n
	default:
		return n
	}
	return 0
}

// filled counts n bytes that have arrived in the message, and delivers the message when it is
// complete. Bytes of a reserved message leave the connection's window at once: the budget counts them already.
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

// admit reserves memory for a message of n bytes. If there is not enough, a new goroutine waits for
// it. The reader calls admit, without holding conn.mu.
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

// grant makes m, whose memory is reserved, the message being filled. The caller calls feed with the
// bytes that have arrived, and then credit.
func (c *conn) grant(s *stream, m message, r *reservation) {
	a := &s.assembly
	m.reserved, m.compressed = r, a.prefix[0] == 1
	s.reserved = append(slices.DeleteFunc(s.reserved, (*reservation).released), r)
	a.msg, a.need = m, len(m.data)
	s.unread -= prefixLen
	c.received(prefixLen)
	a.watch.start(s)
}

// ask starts a goroutine that waits for memory for the message of s, unless there is one, or none is needed or possible. The
// goroutine ends with the context of the call, or when asking is called.
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

// wait waits for memory for a message of n bytes, and then lets the peer send the message: it feeds the parked bytes again, which
// now go into the message, and enlarges the window. If the call has ended meanwhile, it gives the memory back.
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
		c.received(-len(raw)) // feed counts these bytes again
		c.grant(s, m, r)
		c.feed(s, raw, 0)
		c.checkEnd(s)
		c.credit(s)
	}
	c.flush()
}

// drop frees the beginning of a message that will not be completed, and ends the wait for its memory. conn.mu is held.
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
