package transport

import "time"

// gRPC peers ping with nearly every call, to estimate the bandwidth of the connection. Writing each
// answer alone would double the writes of a short call, and wake the peer once more. So an answer
// waits for a moment if something else is likely to be written: a server's answer goes out with the
// reply, a client's with the next request.

// pongTime bounds how long the answer to a ping waits. Peers wait for it for seconds. It is not shorter, because each timer that is
// due soon keeps Go's scheduler awake.
const pongTime = 20 * time.Millisecond

// pongs are the answers to pings in conn.out. conn.mu guards them. Any write of conn.out takes them along. The timer goes on
// meanwhile, because to stop and set it with each call takes longer.
type pongs struct {
	bytes int           // their length
	wrote time.Time     // when conn.out was last written; all of them are newer
	gap   time.Duration // time between the last two writes of conn.out
	timer *time.Timer   // writes those that have waited long enough; nil: none ever had to wait
	runs  bool          // timer is running
}

// flushSettled is flush, but lets answers to pings wait if nothing else is in the buffer. c.mu is
// held; flushSettled releases it while it writes.
func (c *conn) flushSettled() {
	p := &c.pongs
	switch {
	case p.bytes == 0 || p.bytes < len(c.out) || !c.side.writesSoon():
		c.flush()
	case !p.runs:
		c.pongIn(pongTime)
	}
}

// pongIn starts the timer. c.mu is held.
func (c *conn) pongIn(d time.Duration) {
	p := &c.pongs
	p.runs = true
	if p.timer == nil {
		p.timer = time.AfterFunc(d, c.pong)
	} else {
		p.timer.Reset(d)
	}
}

// pong writes answers that have waited long enough.
func (c *conn) pong() {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := &c.pongs
	p.runs = false
	switch left := pongTime - time.Since(p.wrote); {
	case p.bytes == 0:
	case left > 0:
		c.pongIn(left)
	default:
		c.flush()
	}
}

// written notes that all of conn.out is about to be written. conn.mu is held.
func (p *pongs) written() {
	now := time.Now()
	p.bytes, p.wrote, p.gap = 0, now, now.Sub(p.wrote)
}

// writesSoon reports whether there are calls: their replies will follow.
func (c *serverConn) writesSoon() bool { return len(c.streams) > 0 }

// writesSoon reports whether the last two writes followed each other at once: another is likely.
func (c *clientConn) writesSoon() bool {
	return c.pongs.gap < pongTime && time.Since(c.pongs.wrote) < pongTime
}
