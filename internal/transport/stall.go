package transport

import (
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// leastRate is how many bytes of a message have to come in a second, on average over the time for
// which a peer may be silent. A peer that sends a byte now and then would keep memory from others
// just as one that sends nothing.
const leastRate = 64 << 10

// A watch ends a call whose message does not come although memory was reserved for it. Without
// a watch, five bytes would keep memory from others for ever. conn.mu guards it. The zero watch
// watches nothing.
type watch struct {
	timer *time.Timer
	had   int // when the timer went off last
}

// start watches the message that s is about to get.
func (w *watch) start(s *stream) {
	w.had = -s.conn.least()
	w.timer = time.AfterFunc(s.conn.cfg.stall, func() { s.stalled() })
}

func (w *watch) stop() {
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
}

// least is how much of a message has to come while a peer may be silent.
func (c *conn) least() int { return max(1, int(c.cfg.stall.Seconds()*leastRate)) }

// stalled is called when a message of s has taken a while.
func (s *stream) stalled() {
	c, a := s.conn, &s.assembly
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case a.watch.timer == nil: // it came just now
	case a.fill-a.watch.had >= c.least():
		a.watch.had = a.fill
		a.watch.timer.Reset(c.cfg.stall)
	default:
		c.side.unwanted(s, status.Errorf(codes.ResourceExhausted,
			"the peer has sent next to nothing for %v of a message of %d bytes, of which there are %d", c.cfg.stall, len(a.msg.data), a.fill))
		c.flush()
	}
}

// deadline bounds the time for what the reader is in the middle of, a frame or a header block: by
// the time for which a peer may be silent, or half as much again. A byte now and then does not
// lengthen it. A peer that has nothing to say may be silent for as long as it likes. c.mu is held.
func (c *conn) deadline() {
	if !c.within {
		if !c.armed.IsZero() {
			_ = c.nc.SetReadDeadline(time.Time{}) // the read says it
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
