package transport

import (
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A watch sees to it that a message for which memory was taken comes: without it, five bytes
// would keep memory from others for ever. conn.mu guards it. The zero watch watches nothing.
type watch struct {
	timer *time.Timer
	had   int // when the timer went off last
}

// start watches the message that s is about to get.
func (w *watch) start(s *stream) {
	w.had = -1
	w.timer = time.AfterFunc(s.conn.cfg.stall, func() { s.stalled() })
}

func (w *watch) stop() {
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
}

// stalled is called when a message of s has taken a while.
func (s *stream) stalled() {
	c, a := s.conn, &s.assembly
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case a.watch.timer == nil: // it came just now
	case a.watch.had < a.fill:
		a.watch.had = a.fill
		a.watch.timer.Reset(c.cfg.stall)
	default:
		c.side.unwanted(s, status.Errorf(codes.ResourceExhausted,
			"the peer has sent nothing for %v of a message of %d bytes, of which there are %d", c.cfg.stall, len(a.msg.data), a.fill))
		c.flush()
	}
}

// deadline bounds the next read if it is in the middle of a frame: by the time for that, or half
// of it. A peer that has nothing to say may be silent for as long as it likes. c.mu is held.
func (c *conn) deadline() {
	if !c.within {
		if !c.armed.IsZero() {
			_ = c.nc.SetReadDeadline(time.Time{}) // the read says it
			c.armed = time.Time{}
		}
		return
	}
	if now := time.Now(); now.Sub(c.armed) > c.cfg.stall/2 {
		_ = c.nc.SetReadDeadline(now.Add(c.cfg.stall))
		c.armed = now
	}
}
