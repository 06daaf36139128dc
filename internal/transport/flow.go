package transport

import (
	"io"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The windows that we grant the peer: RFC 9113, section 5.2.
//
// The window of a stream is firstWindow, or wideWindow if its receiver keeps up with short messages
// and there is memory for that. It shrinks by the bytes that have arrived and that the call has not
// received yet. It grows by the bytes still missing of a message for which memory is reserved.
//
// These counts hold what a peer may do and has done, in bytes. The reader announces the bytes of a frame when it has read the
// header of the frame:
//
//	open      the peer may still send so many, on the stream or on the connection
//	coming    of the current frame, so many are announced and not read yet
//	unread    so many have arrived, no call has received them, and no memory is reserved for them
//	need      so many are missing of the message for which memory is reserved
//	parked    so many of unread wait for memory, on all streams of the connection together
//	toReturn  so many of the connection's window are used and can be given back
//
// credit raises open, but never so far that open + coming + unread exceed the window of the stream plus need. giveBack returns
// the window of the connection in quarters, to save frames.
//
// A strict connection gives its window back when the calls receive their messages. Its peer is one
// client, which gets no more memory than this window and its share of the budget. If the client
// makes calls that do not read, it blocks only itself. A connection that is not strict gives its
// window back as soon as bytes arrive: it leads to a backend, and no call may block the others.

// received counts n bytes that take no memory any more, or whose memory is reserved. A negative n takes that back.
func (c *conn) received(n int) {
	if c.cfg.strict {
		c.giveBack(n)
	}
}

// giveBack gives n bytes back to the connection's window.
func (c *conn) giveBack(n int) {
	if c.toReturn += n; c.toReturn >= c.cfg.window/4 {
		c.out = appendWindowUpdate(c.out, 0, c.toReturn)
		c.open += c.toReturn
		c.toReturn = 0
	}
}

// mostParked bounds the parked bytes of a connection, as a multiple of its window; for the default
// window of 1 MiB that is enough for 64 messages.
const mostParked = 4

// park keeps b, the beginning of a message for which there is no memory yet, or bytes that follow
// it. Parked bytes count in the window of the stream, but not in that of the connection: otherwise
// messages that wait for memory would block the one that has it. park reports false if too much is
// parked; it then refuses the message.
func (c *conn) park(s *stream, b []byte) bool {
	if c.cfg.strict && c.parked+len(b) > mostParked*c.cfg.window {
		c.side.unwanted(s, status.Error(codes.ResourceExhausted, "transport: too many long messages of this connection wait for memory"))
		return false
	}
	s.assembly.raw = append(s.assembly.raw, b...)
	s.unread += len(b)
	c.parked += len(b)
	c.received(len(b))
	return true
}

// unpark returns the parked bytes of s, which then parks none. The caller feeds them to s again, or drops them.
func (s *stream) unpark() []byte {
	a := &s.assembly
	raw := a.raw
	a.raw, a.want = nil, 0
	s.conn.parked -= len(raw)
	s.unread -= len(raw)
	return raw
}

// credit enlarges the peer's window of s up to what there is room for, if the difference is worth
// a WINDOW_UPDATE frame, or if the peer waits for it.
func (c *conn) credit(s *stream) {
	if s.ended || s.gone {
		return
	}
	if s.taken >= keepsUp && s.wide == nil {
		s.widen()
	}
	width := firstWindow
	if s.wide != nil {
		width = wideWindow
	}
	need := s.assembly.need
	more := min(width-s.unread-s.coming+need, maxWindow) - s.open
	if more > 0 && (more >= width/2 || need > s.open) {
		c.out = appendWindowUpdate(c.out, s.id, more)
		s.open += more
	}
}

const (
	wideWindow = 256 << 10
	keepsUp    = 16 * firstWindow // bytes of short messages after which a stream gets a wide window
)

// widen gives a stream a wide window, if there is memory for that now. conn.mu is held.
func (s *stream) widen() {
	s.taken = 0 // without memory: try again after as many bytes
	r := &reservation{budget: s.conn.cfg.budget, ctx: s.ctx, n: wideWindow - firstWindow}
	if r.budget.TryReserve(r.ctx, r.n) {
		s.wide = r
	}
}

// readData reads a DATA frame.
func (c *conn) readData(fh http2.FrameHeader) error {
	if fh.StreamID == 0 {
		return connError{http2.ErrCodeProtocol, "a DATA frame without a stream"}
	}
	n, pad := int(fh.Length), 0
	if fh.Flags.Has(http2.FlagDataPadded) {
		if n == 0 {
			return connError{http2.ErrCodeFrameSize, "a DATA frame is too short for its padding"}
		}
		b, err := c.in.ReadByte()
		if err != nil {
			return unexpected(err)
		}
		pad = int(b)
		if n -= 1 + pad; n < 0 {
			return connError{http2.ErrCodeProtocol, "the padding of a DATA frame is longer than the frame"}
		}
	}
	end := fh.Flags.Has(http2.FlagDataEndStream)
	s, err := c.dataFor(fh, n, end)
	if err == nil && s != nil {
		err = c.readPayload(s, n)
		n = 0
	}
	if n+pad > 0 && !fatal(err) {
		if _, e := c.in.Discard(n + pad); e != nil {
			return unexpected(e)
		}
	}
	if err == nil && s != nil && end {
		c.side.halfClosed(s)
	}
	return err
}

// tinyFrame is the size below which a DATA frame costs us more than its sender, unless it ends the
// stream. A backend may send a reply in frames as small as it likes: each has some of the reply.
const tinyFrame = 32

// dataFor counts a DATA frame with n bytes of data, without padding, and returns its stream. It
// returns nil if the reader must skip the frame.
func (c *conn) dataFor(fh http2.FrameHeader, n int, end bool) (*stream, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	length := int(fh.Length)
	if length > c.open {
		return nil, connError{http2.ErrCodeFlowControl, "a DATA frame is longer than the window of the connection"}
	}
	c.open -= length
	if !c.cfg.strict {
		c.giveBack(length)
	}
	s := c.streams[fh.StreamID]
	over := s == nil || s.ended
	if n < tinyFrame && !end && (c.cfg.strict || n == 0 || over) {
		if err := c.chargeLocked(1); err != nil {
			return nil, err
		}
	}
	if over {
		c.received(length)
		return nil, c.late(fh, s)
	}
	if length > s.open {
		c.received(length)
		return nil, streamError{s.id, http2.ErrCodeFlowControl, "a DATA frame is longer than the window of the stream"}
	}
	s.open -= length
	s.coming = n
	if length > n {
		c.received(length - n)
		c.credit(s)
	}
	if err := s.count(n, end); err != nil {
		c.received(n)
		return nil, err
	}
	return s, nil
}

// count counts n bytes of the body. It returns an error if the length of the body differs from
// content-length.
func (s *stream) count(n int, end bool) error {
	if s.length < 0 {
		return nil
	}
	if s.length -= n; s.length < 0 || end && s.length > 0 {
		return streamError{s.id, http2.ErrCodeProtocol, "the body is not as long as content-length says"}
	}
	return nil
}

// late returns the error of a frame for a stream that has ended or has never begun, or nil if the
// peer may have sent the frame before it read our RST_STREAM.
func (c *conn) late(fh http2.FrameHeader, s *stream) error {
	if s == nil {
		if !c.side.known(fh.StreamID) {
			return connError{http2.ErrCodeProtocol, "a " + fh.Type.String() + " frame for a stream that has not begun"}
		}
		if found, ours := c.recent.find(fh.StreamID); ours || !found {
			return nil // we have reset the stream, or may have
		}
	}
	return streamError{fh.StreamID, http2.ErrCodeStreamClosed, "a " + fh.Type.String() + " frame for a stream that has ended"}
}

// readPayload reads n bytes for s: into the message that is being filled, if more of it are to come than the buffer holds, or
// else by way of the buffer. So a long message is copied once, and a short one costs no system call of its own. It locks
// c.mu only between reads.
func (c *conn) readPayload(s *stream, n int) error {
	for n > 0 {
		if room := c.room(s, n); len(room) > c.in.Buffered() { // read directly into the message
			k, err := io.ReadFull(c.in, room)
			if c.filledDirectly(s, k); err != nil {
				return unexpected(err)
			}
			n -= k
			continue
		}
		if c.in.Buffered() == 0 {
			if _, err := c.in.Peek(1); err != nil {
				return unexpected(err)
			}
		}
		b, err := c.in.Peek(min(n, c.in.Buffered()))
		if err != nil {
			return err
		}
		used, large := c.feedFrame(s, b, n-len(b))
		if large > 0 {
			c.admit(s, large)
		}
		if _, err := c.in.Discard(used); err != nil {
			return err
		}
		n -= used
	}
	return nil
}

// feedFrame is feed for bytes that the current frame has announced.
func (c *conn) feedFrame(s *stream, b []byte, rest int) (used, large int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	used, large = c.feed(s, b, rest)
	s.coming -= used
	return used, large
}

// filledDirectly is filled for n bytes that the reader has read into the message itself.
func (c *conn) filledDirectly(s *stream, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.coming -= n
	if s.dead {
		c.received(n)
	} else {
		c.filled(s, n)
	}
}

// room returns the memory for up to n of the next bytes of s, or nil if there is none yet. Only the reader fills it, so it needs
// no lock for that. A call that ends meanwhile drops the message, but does not reuse its memory.
func (c *conn) room(s *stream, n int) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := &s.assembly
	if s.dead || s.ignore || a.msg.data == nil {
		return nil
	}
	room := a.msg.data[a.fill:]
	return room[:min(n, len(room))]
}

// end notes that the peer has ended its half of s. c.mu is held.
func (c *conn) end(s *stream) {
	s.ended = true
	c.checkEnd(s)
	s.wakeReceiver()
}

// checkEnd sets the error of a stream that has ended within a message. A message that has arrived whole and waits for memory is
// no such message.
func (c *conn) checkEnd(s *stream) {
	a := &s.assembly
	whole := a.want > 0 && len(a.raw) >= a.want // a whole message waits for memory
	if s.ended && s.err == nil && !s.ignore && a.got > 0 && !whole {
		s.err = status.Error(codes.Internal, io.ErrUnexpectedEOF.Error())
		s.drop()
	}
}
