package transport

import (
	"context"
	"encoding/binary"
	"slices"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/mem"
)

// Sending. A message stays with its sender until the windows of the stream and of the connection let it through, so what waits
// takes no room in the buffer. Two queues say who goes on when there is room again: queue has streams with a message, turns
// has header blocks. Both are in the order in which they began to wait.
//
// Only one waiter of each queue is woken at a time. It may find that there is no room after all, or its call may have ended.
// Whatever it does then, it must call nudge, which wakes the next one. Otherwise all later ones would wait for ever.

// outgoing is the unsent rest of a message. It belongs to the sender, which holds conn.mu while it uses it. The bytes are those
// of the caller of send, and are not used after send has returned.
type outgoing struct {
	prefix [prefixLen]byte
	bufs   mem.BufferSlice
	off    int  // bytes already sent of prefix, or of the first of bufs
	body   bool // the prefix has been sent
	left   int  // bytes still to send
	end    bool // it is the last message on the stream
}

// newOutgoing returns a message with its prefix, not compressed.
func newOutgoing(bufs mem.BufferSlice, end bool) outgoing {
	m := outgoing{bufs: bufs, end: end}
	n := bufs.Len()
	binary.BigEndian.PutUint32(m.prefix[1:], uint32(n))
	m.left = prefixLen + n
	return m
}

// piece consumes and returns some of the next bytes, at most n.
func (m *outgoing) piece(n int) []byte {
	var p []byte
	if !m.body {
		p = m.prefix[m.off:]
	} else {
		p = m.bufs[0].ReadOnlyData()[m.off:]
	}
	if len(p) > n {
		p = p[:n]
		m.off += n
	} else {
		m.off = 0
		if m.body {
			m.bufs = m.bufs[1:]
		}
		m.body = true
	}
	m.left -= len(p)
	return p
}

// slices consumes the next n bytes and appends them to parts, without copying.
func (m *outgoing) slices(parts [][]byte, n int) [][]byte {
	for n > 0 {
		p := m.piece(n)
		if n -= len(p); len(p) > 0 {
			parts = append(parts, p)
		}
	}
	return parts
}

// flags returns the flags of a DATA frame with the next n bytes.
func (m *outgoing) flags(n int) http2.Flags {
	if n == m.left && m.end {
		return http2.FlagDataEndStream
	}
	return 0
}

// send sends bufs as a message on s, the last one if end is set. It waits when the windows are
// used up, and returns when the whole message has been written or is in the connection's buffer,
// which highWater bounds. c.mu is held; send releases it while it waits or writes.
func (c *conn) send(s *stream, bufs mem.BufferSlice, end bool) error {
	if s.sending.left > 0 { // the end of the call cut off a message: nothing can follow it
		return s.sendError()
	}
	s.sending = newOutgoing(bufs, end)
	return c.sendAll(s)
}

// sendAll sends s.sending, and notes if that ends our half of the stream. What the end of the call cuts off stays in left: send
// then refuses further messages.
func (c *conn) sendAll(s *stream) error {
	m := &s.sending
	var err error
	for m.left > 0 && err == nil {
		err = c.sendSome(s, m)
	}
	m.bufs = nil
	c.unqueue(s)
	s.endSent = s.endSent || m.end && err == nil
	return err
}

// sendSome sends a part of m, or waits until it may be able to. The first that applies decides:
//
//	the stream is gone                            it fails
//	the window of the stream is used up           it waits for that, and is in no queue
//	so is the connection's, or out is full        it waits in the queue
//	m is short, or the socket can only block      it copies a part into the buffer, for the next flush
//	another goroutine writes                      it waits in the queue
//	otherwise                                     it writes a part without copying
func (c *conn) sendSome(s *stream, m *outgoing) error {
	n := min(m.left, s.window, c.window)
	switch {
	case s.gone:
		return s.sendError()
	case s.window <= 0:
		return c.await(s, false)
	case c.window <= 0 || len(c.out) > highWater:
		return c.await(s, true)
	case n <= copied || c.raw.conn == nil:
		c.appendData(s, m, min(n, copied))
	case c.busy:
		return c.await(s, true)
	default:
		c.writeData(s, m, min(n, mostFrames*min(c.peerFrame, longFrame)))
	}
	return nil
}

// appendData appends n bytes of m to the buffer, as DATA frames.
func (c *conn) appendData(s *stream, m *outgoing, n int) {
	c.grow(n + (1+n/c.peerFrame)*frameHeaderLen)
	for c.use(s, n); n > 0; {
		k := min(n, c.peerFrame)
		c.out = appendFrame(c.out, k, http2.FrameData, m.flags(k), s.id)
		for n -= k; k > 0; {
			p := m.piece(k)
			c.out = append(c.out, p...)
			k -= len(p)
		}
	}
}

// use takes n bytes from the windows of s and c.
func (c *conn) use(s *stream, n int) {
	s.window -= n
	c.window -= n
	c.sentData = true
}

// sendError returns the error of sending on a stream that has ended.
func (s *stream) sendError() error {
	if s.err != nil {
		return s.err
	}
	return errDone
}

// await waits until s may be able to send more: until its window grows, or, if queue is set, until
// it is its turn in the connection's queue. c.mu is held; await releases it while it waits.
func (c *conn) await(s *stream, queue bool) error {
	if s.writable == nil {
		s.writable = make(chan struct{}, 1)
	}
	if queue && !s.queued {
		s.queued = true
		c.queue = append(c.queue, s)
	}
	c.flush()
	c.nudge() // a sender that waits for its own window must not hold up the others
	c.mu.Unlock()
	defer c.mu.Lock()
	select {
	case <-s.writable:
		return nil
	case <-s.ctx.Done():
		return contextError(s.ctx)
	}
}

// unqueue removes s, which no longer waits, from the queue, and wakes the next sender. A sender that
// something else woke, such as its own window, is still in the queue: without unqueue it would get a
// turn later and not pass it on.
func (c *conn) unqueue(s *stream) {
	if s.queued {
		s.queued = false
		c.queue = slices.DeleteFunc(c.queue, func(q *stream) bool { return q == s })
	}
	c.nudge()
}

// mayAppend reports whether a header block may go into the buffer now. A sender that has not waited
// for a turn must let those that wait go first.
func (c *conn) mayAppend(waited bool) bool {
	return len(c.streams) < c.most && len(c.out) <= highWater && (waited || len(c.turns) == 0)
}

// awaitTurn waits until the connection may have room for a header block, or until ctx ends. The
// caller must check mayAppend again. It must also call nudge in the end, whatever happens: otherwise
// the senders after it would wait for ever. c.mu is held; awaitTurn releases it while it waits.
func (c *conn) awaitTurn(ctx context.Context) error {
	turn := make(chan struct{})
	c.turns = append(c.turns, turn)
	c.flush()
	c.nudge()
	c.mu.Unlock()
	var err error
	select {
	case <-turn:
	case <-ctx.Done():
		err = contextError(ctx)
	}
	c.mu.Lock()
	if err != nil {
		c.turns = slices.DeleteFunc(c.turns, func(t chan struct{}) bool { return t == turn })
	}
	return err
}

// wakeTurns wakes all goroutines that wait for a turn: there will be no more turns. c.mu is held.
func (c *conn) wakeTurns() {
	for _, turn := range c.turns {
		close(turn)
	}
	c.turns = nil
}

// nudge wakes the next sender of a message and the next sender of a header block, if they can go
// on. A goroutine that was woken calls nudge in turn when it is done or gives up.
func (c *conn) nudge() {
	if len(c.turns) > 0 && c.mayAppend(true) {
		close(c.turns[0])
		c.turns = slices.Delete(c.turns, 0, 1)
	}
	if len(c.queue) > 0 && c.window > 0 && !c.busy {
		s := c.queue[0]
		c.queue = slices.Delete(c.queue, 0, 1)
		s.queued = false
		s.wake()
	}
}
