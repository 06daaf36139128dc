package transport

import (
	"context"
	"io"

	"golang.org/x/net/http2"
)

// A stream is a call on a connection, as both ends see it.
type stream struct {
	conn *conn
	id   uint32
	ctx  context.Context // of the call

	assembly assembly // of the reader's; where it says so guarded by conn.mu

	// conn.mu guards the rest.
	owner any   // what the side knows it by
	gone  bool  // it is no longer one of the connection's
	dead  bool  // further messages will not be received
	ended bool  // the peer has ended its half
	said  bool  // we have ended our half
	err   error // why it has ended before its time

	inbox  []message
	slot   [1]message    // for the first of inbox
	first  int           // of inbox: what has been received already
	ready  chan struct{} // has room for one: there may be something to receive
	quiet  bool          // wake the receiver at the end only: one message is expected
	unread int           // bytes of messages that were not reserved and not received, prefixes included
	coming int           // bytes of the frame that is being read
	taken  int           // bytes of messages that were not reserved and received; see keepsUp
	wide   *reservation  // of a wide window; nil: it has none
	large  int           // messages that were reserved and not received
	open   int           // what the peer may send
	length int           // of the body, what is to come by its content-length; -1: it has none
	ignore bool          // what comes is of no use; err says why

	reserved []*reservation // for messages

	sending  outgoing      // the sender's
	window   int           // what the peer lets us send
	writable chan struct{} // has room for one: there may be more that we can send; nil if no sender waits
	queued   bool          // in conn.queue
}

// init makes s a stream of c. c.mu is held.
func (s *stream) init(c *conn, id uint32) {
	s.conn, s.id, s.open, s.length, s.window = c, id, firstWindow, -1, c.peerWindow
	s.inbox = s.slot[:0]
	c.streams[id] = s
}

// tell wakes the receiver.
func (s *stream) tell() {
	if s.quiet && !s.ended && s.err == nil {
		return
	}
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// wake wakes the sender.
func (s *stream) wake() {
	if s.writable == nil {
		return
	}
	select {
	case s.writable <- struct{}{}:
	default:
	}
}

// deliver hands a message to the receiver. c.mu is held.
func (c *conn) deliver(s *stream, m message) {
	if s.dead || s.ignore {
		m.drop()
		return
	}
	c.guard.earn(1 + len(m.data)/guardBytes)
	if m.reserved != nil {
		s.large++
	}
	if len(s.inbox) == cap(s.inbox) && 2*s.first >= len(s.inbox) { // there is room in front
		waiting := copy(s.inbox, s.inbox[s.first:])
		clear(s.inbox[waiting:])
		s.inbox, s.first = s.inbox[:waiting], 0
	}
	s.inbox = append(s.inbox, m)
	s.tell()
}

// receive waits for the next message. io.EOF is the end of the stream, any other error
// that of the call.
func (s *stream) receive() (message, error) {
	c := s.conn
	for {
		c.mu.Lock()
		m, ok, err := s.take()
		c.flushSettled() // windows, and what was not urgent
		c.mu.Unlock()
		if ok || err != nil {
			return m, err
		}
		select {
		case <-s.ready:
		case <-s.ctx.Done():
			return message{}, contextError(s.ctx)
		}
	}
}

// take takes the next message out of the inbox, if there is one, or returns why there will
// be none. c.mu is held.
func (s *stream) take() (m message, ok bool, err error) {
	if s.first == len(s.inbox) {
		err = s.err
		if err == nil && s.ended && s.assembly.want == 0 {
			err = io.EOF
		}
		return m, false, err
	}
	m = s.inbox[s.first]
	s.inbox[s.first] = message{}
	if s.first++; s.first == len(s.inbox) {
		s.inbox, s.first = s.inbox[:0], 0
	}
	c := s.conn
	if m.reserved != nil {
		s.large--
		s.assembly.ask(s)
	} else if n := prefixLen + len(m.data); !s.gone { // a stream that is gone has given all back
		s.unread -= n
		s.taken += n
		c.received(n)
	}
	c.credit(s)
	return m, true, nil
}

// refuse takes no more messages in: the receiver gets err. c.mu is held.
func (s *stream) refuse(err error) {
	if s.err == nil {
		s.err = err
	}
	s.ignore = true
	s.drop()
	s.tell()
}

// kill drops the messages of a stream from which nothing will be received any more. c.mu is held.
func (s *stream) kill() {
	s.dead = true
	for _, m := range s.inbox[s.first:] {
		m.drop()
	}
	s.inbox, s.first = nil, 0
	s.drop()
}

// remove takes s off the connection, which skips later frames of it. If ours is set we have
// reset the stream, and the peer may not have read that yet. c.mu is held.
func (c *conn) remove(s *stream, ours bool) {
	if s.gone {
		return
	}
	s.gone = true
	delete(c.streams, s.id)
	c.recent.add(s.id, ours)
	c.received(s.unread - len(s.assembly.raw))
	if a := &s.assembly; a.msg.data != nil && a.msg.reserved == nil {
		c.received(a.fill)
	}
	s.unread = 0
	s.wide.release()
	s.wake()
	c.side.removed()
}

// abort ends s before its time, with err. If ours is set, this end has decided so, otherwise the
// peer has. c.mu is held.
func (c *conn) abort(s *stream, ours bool, err error) {
	if s.gone {
		return
	}
	if s.err == nil {
		s.err = err
	}
	c.remove(s, ours)
	c.side.aborted(s)
	s.tell()
}

// reset is abort that also sends RST_STREAM to the peer. c.mu is held.
func (c *conn) reset(s *stream, code http2.ErrCode, err error) {
	if s.gone {
		return
	}
	c.out = appendReset(c.out, s.id, code)
	c.abort(s, true, err)
}

// recentStreams are the streams that have ended last. What still comes for one that we have
// cut off was on its way; for another one it is the peer's mistake.
type recentStreams struct {
	all [64]struct {
		id   uint32
		ours bool
	}
	next int
}

func (r *recentStreams) add(id uint32, ours bool) {
	r.all[r.next].id, r.all[r.next].ours = id, ours
	r.next = (r.next + 1) % len(r.all)
}

func (r *recentStreams) find(id uint32) (found, ours bool) {
	for _, s := range r.all {
		if s.id == id {
			return true, s.ours
		}
	}
	return false, false
}
