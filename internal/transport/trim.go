package transport

import (
	"cmp"
	"net"
	"slices"
	"sync/atomic"
)

// A Crowd counts the connections that a listener has accepted; as long as nothing need end, perhaps with those of other
// listeners.
type Crowd struct {
	Ended int // by this Trim
	Left  int // that were not asked to leave
	All   int // with those that were asked to leave and still keep their descriptor
}

// An Idle is a connection that Trim may end.
type Idle struct {
	Begun bool        // the handshake is done
	Used  uint64      // when it was last used, in the time of [Clock]
	End   func() bool // ends it, unless a call is under way by then, and reports whether it did
}

// A Clock orders what clients do by the number of connections that were accepted before. A call need not read the time for it.
type Clock struct{ accepted atomic.Uint64 }

// Tick counts one more connection.
func (c *Clock) Tick() { c.accepted.Add(1) }

// Now returns the time.
func (c *Clock) Now() uint64 { return c.accepted.Load() }

// End ends idle connections until at most most are left of left: first those that have not begun, and of these, and of the
// others, those first whose last use is the longest ago. It returns how many it has ended.
func End(idle []Idle, left, most int) (ended int) {
	if left <= most {
		return 0
	}
	slices.SortFunc(idle, func(a, b Idle) int {
		if a.Begun != b.Begun {
			if b.Begun {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Used, b.Used)
	})
	for _, one := range idle {
		if left-ended > most && one.End() {
			ended++
		}
	}
	return ended
}

// Trim ends connections that the listener has accepted until at most most are left: first those in the handshake of which
// silent reports true, then those without calls. A client is asked to make its next call on another connection, so that no
// call fails. A client may be slow to leave: Trim closes connections that were asked to leave until at most twice most are
// left of all. Trim ends no connection with a call.
func (s *Server) Trim(of net.Listener, most int, silent func(net.Conn) bool) Crowd {
	var crowd Crowd
	var idle, leaving []Idle
	var conns []*serverConn
	s.mu.Lock()
	if n := len(s.greeting) + len(s.conns); n <= most { // of all listeners
		s.mu.Unlock()
		return Crowd{Left: n, All: n}
	}
	for nc, g := range s.greeting {
		if g.listener != of {
			continue
		}
		crowd.All, crowd.Left = crowd.All+1, crowd.Left+1
		if silent(nc) {
			idle = append(idle, Idle{false, g.began, func() bool { return s.endSilent(nc) }})
		}
	}
	for c := range s.conns {
		if c.listener == of {
			conns = append(conns, c)
		}
	}
	s.mu.Unlock()
	for _, c := range conns {
		crowd.All++
		c.mu.Lock()
		if c.leaving != accepting || c.err != nil {
			leaving = append(leaving, Idle{true, c.used, c.cutOff})
		} else {
			crowd.Left++
			if c.running == 0 {
				idle = append(idle, Idle{true, c.used, c.endIdle})
			}
		}
		c.mu.Unlock()
	}
	crowd.Ended = End(idle, crowd.Left, most)
	crowd.Left -= crowd.Ended
	crowd.All -= End(leaving, crowd.All, 2*most)
	return crowd
}

// endSilent closes a connection that is in the handshake, and reports whether it did. The goroutine of the connection finds it
// missing in greeting, and does not serve it.
func (s *Server) endSilent(nc net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, is := s.greeting[nc]; !is {
		return false
	}
	delete(s.greeting, nc)
	s.changed.Broadcast()
	_ = nc.Close() // greet then returns an error
	return true
}

// endIdle closes the connection unless a call is under way, and reports whether it did. The client makes calls that
// cross the GOAWAY on another connection.
func (c *serverConn) endIdle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running > 0 || c.leaving != accepting || c.err != nil {
		return false
	}
	c.leaving = announced
	c.leaveNow()
	return true
}

// cutOff closes a connection that takes no more calls, unless a call is under way or a frame is not written yet, and
// reports whether it did.
func (c *serverConn) cutOff() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil || c.busy {
		return false
	}
	go c.nc.Close() // the reader notices; TLS may wait for the client
	return true
}
