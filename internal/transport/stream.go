package transport

import (
	"context"
	"io"

	"golang.org/x/net/http2"
)

// A stream is the part of a call that serverStream and clientStream share. conn, id and ctx do not change once the call has
// begun.
//
// Four marks say how far it is. Each is set once, and they may come in any order:
//
//	ended    the peer sends no more: END_STREAM has arrived
//	endSent  we send no more: END_STREAM has been sent
//	gone     the connection has removed the stream, and skips later frames of it
//	dead     the call receives no more, and messages that still arrive are dropped
//
// err is why the receiver gets no more messages than those in the inbox: the stream has ended early, or the rest is refused.
// Without an err the receiver gets io.EOF after the last message.
//
// One goroutine receives and one sends, each woken by a channel with room for one token: ready and writable. A token says
// "look again", not what has happened, so a token too many does no harm.
type stream struct {
	conn *conn
	id   uint32
	ctx  context.Context // of the call

	assembly assembly // guarded as it says

	// conn.mu guards the rest.
	owner                      any   // the serverStream or clientStream
	gone, dead, ended, endSent bool  // see above
	err                        error // why the stream has ended early

	inbox  []message
	slot   [1]message    // memory of inbox for the first message
	first  int           // how many messages at the front of inbox have been received
	ready  chan struct{} // has room for one: there may be something to receive
	quiet  bool          // wake the receiver only at the end: one message is expected
	unread int           // bytes not received yet of messages without a reservation, with prefixes
	coming int           // bytes that are still to be read of the current frame
	taken  int           // bytes received of messages without a reservation; see keepsUp
	wide   *reservation  // of the wide window; nil: the window is not wide
	large  int           // messages with a reservation that have not been received
	open   int           // bytes that the peer may send
	length int           // bytes of the body still to come, by content-length; -1: there is none
	ignore bool          // skip the messages that arrive; err says why

	reserved []*reservation // for messages

	sending  outgoing      // used by the sender
	window   int           // bytes that the peer lets us send
	writable chan struct{} // has room for one: we may be able to send more; nil if no sender waits
	queued   bool          // in conn.queue
}

// init makes s a new stream of c. c.mu is held.
func (s *stream) init(c *conn, id uint32) {
	s.conn, s.id, s.open, s.length, s.window = c, id, firstWindow, -1, c.peerWindow
	s.inbox = s.slot[:0]
	c.streams[id] = s
}

// wakeReceiver wakes the receiver.
func (s *stream) wakeReceiver() {
	if s.quiet && !s.ended && s.err == nil {
		return
	}
	signal(s.ready)
}

// wake wakes the sender, if one waits.
func (s *stream) wake() { signal(s.writable) }

// signal puts a token into a channel that has room for one, unless it holds one already. It does nothing for a nil channel.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// deliver hands a message to the receiver. The inbox has no bound of its own: the window of the stream and the reservations
// bound what is in it. If at least half of it has been received, the rest moves to the front, so that it need not grow. c.mu
// is held.
func (c *conn) deliver(s *stream, m message) {
	if s.dead || s.ignore {
		m.drop()
		return
	}
	c.guard.earn(1 + len(m.data)/guardBytes)
	if m.reserved != nil {
		s.large++
	}
	if len(s.inbox) == cap(s.inbox) && 2*s.first >= len(s.inbox) { // the front has room
		waiting := copy(s.inbox, s.inbox[s.first:])
		clear(s.inbox[waiting:])
		s.inbox, s.first = s.inbox[:waiting], 0
	}
	s.inbox = append(s.inbox, m)
	s.wakeReceiver()
}

// receive waits for the next message. It returns io.EOF at the end of the stream; any other error is
// the call's.
func (s *stream) receive() (message, error) {
	c := s.conn
	for {
		c.mu.Lock()
		m, ok, err := s.take()
		c.flushSettled() // window updates, and frames that could wait
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

// take removes the next message from the inbox, if there is one, or returns why no more will come.
// c.mu is held.
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
	} else if n := prefixLen + len(m.data); !s.gone { // removing the stream has given all back
		s.unread -= n
		s.taken += n
		c.received(n)
	}
	c.credit(s)
	return m, true, nil
}

// refuse skips all further messages of s, and the receiver gets err after those in the inbox. The stream stays, so that a
// handler can still answer. c.mu is held.
func (s *stream) refuse(err error) {
	if s.err == nil {
		s.err = err
	}
	s.ignore = true
	s.drop()
	s.wakeReceiver()
}

// kill drops the messages of a stream from which the call will receive no more. c.mu is held.
func (s *stream) kill() {
	s.dead = true
	for _, m := range s.inbox[s.first:] {
		m.drop()
	}
	s.inbox, s.first = nil, 0
	s.drop()
}

// remove removes s from the connection, which skips later frames of it. It gives the connection's window back what s has not
// received, because the receiver, which goes on with the messages in the inbox, will not do so any more. If ours is set, we
// have reset the stream, and the peer may still send frames until it reads the RST_STREAM. c.mu is held.
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

// abort ends s early, with err. If ours is set, we ended the stream, otherwise the peer did. c.mu is
// held.
func (c *conn) abort(s *stream, ours bool, err error) {
	if s.gone {
		return
	}
	if s.err == nil {
		s.err = err
	}
	c.remove(s, ours)
	c.side.aborted(s)
	s.wakeReceiver()
}

// reset aborts s and sends RST_STREAM to the peer. c.mu is held.
func (c *conn) reset(s *stream, code http2.ErrCode, err error) {
	if s.gone {
		return
	}
	c.out = appendReset(c.out, s.id, code)
	c.abort(s, true, err)
}

// recentStreams are the streams that have ended most recently. A late frame is fine on a stream that
// we have reset (ours), and a mistake of the peer on any other.
type recentStreams struct {
	all [64]struct {
		id   uint32
		ours bool
	}
	next int
}

// add adds a stream in the place of the oldest.
func (r *recentStreams) add(id uint32, ours bool) {
	r.all[r.next].id, r.all[r.next].ours = id, ours
	r.next = (r.next + 1) % len(r.all)
}

// find reports whether a stream is among the latest, and whether we have reset it. It reads all of them: it is called only for
// late frames, and the guard counts those.
func (r *recentStreams) find(id uint32) (found, ours bool) {
	for _, s := range r.all {
		if s.id == id {
			return true, s.ours
		}
	}
	return false, false
}
