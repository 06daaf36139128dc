package transport

import (
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// leastRate is how many bytes of a message must arrive in a second, on average over StallTimeout.
// A peer that sends a byte now and then takes memory from other calls, as one that sends nothing
// does.
const leastRate = 64 << 10

// A watch ends a call whose message does not arrive although memory is reserved for it. Without
// a watch, five bytes could take memory from other calls for ever. conn.mu guards it. The zero
// watch watches nothing.
type watch struct {
	timer *time.Timer
	had   int // bytes that had arrived when the timer last fired
}

// start watches the message that s is about to receive.
func (w *watch) start(s *stream) {
	w.had = -s.conn.least()
	w.timer = time.AfterFunc(s.conn.cfg.stall, func() { s.stalled() })
}

// stop ends the watch. A timer that has fired already finds that there is none.
func (w *watch) stop() {
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
}

// least returns how many bytes of a message must arrive within StallTimeout.
func (c *conn) least() int { return max(1, int(c.cfg.stall.Seconds()*leastRate)) }

// stalled ends the call of s if too little of its message has arrived since the timer last fired. The
// watch's timer calls it.
func (s *stream) stalled() {
	c, a := s.conn, &s.assembly
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case a.watch.timer == nil: // the message has just arrived
	case a.fill-a.watch.had >= c.least():
		a.watch.had = a.fill
		a.watch.timer.Reset(c.cfg.stall)
	default:
		c.side.unwanted(s, status.Errorf(codes.ResourceExhausted,
			"the peer has sent next to nothing of a message for %v: %d of its %d bytes have arrived", c.cfg.stall, a.fill, len(a.msg.data)))
		c.flush()
	}
}

// deadline bounds the time for reading one frame or one header block: by StallTimeout, or up to
// half as much again. A byte now and then does not extend it. Between frames a peer may be silent
// for as long as it likes. c.mu is held.
func (c *conn) deadline() {
	if !c.within {
		if !c.armed.IsZero() {
			_ = c.nc.SetReadDeadline(time.Time{}) // reading returns the error
			c.armed = time.Time{}
		}
		return
	}
	if c.armedFor == c.begun {
		return
	}
	if now := time.Now(); now.Sub(c.armed) > c.cfg.stall/2 {
		_ = c.nc.SetReadDeadline(now.Add(c.cfg.stall))
		c.armed, c.armedFor = now, c.begun
	}
}
