package transport

import "time"

// gRPC peers ping with nearly every call, to estimate the bandwidth of the connection. Writing each
// answer alone would double the writes of a short call, and wake the peer once more. So an answer
// waits for a moment if something else is likely to be written: a server's answer goes out with the
// reply, a client's with the next request.

// pongTime bounds how long the answer to a ping waits.
const pongTime = 2 * time.Millisecond

// pongs are the answers to pings in conn.out. conn.mu guards them. Any write of conn.out takes them along, and stops the timer.
type pongs struct {
	bytes int           // their length
	wrote time.Time     // when conn.out was last written
	gap   time.Duration // time between the last two writes of conn.out
	timer *time.Timer   // writes them; nil: they never had to wait
	waits bool          // timer is running
}

// flushSettled is flush, but lets answers to pings wait if nothing else is in the buffer. c.mu is
// held; flushSettled releases it while it writes.
func (c *conn) flushSettled() {
	p := &c.pongs
	switch {
	case p.bytes == 0 || p.bytes < len(c.out) || !c.side.writesSoon():
		c.flush()
	case p.waits:
	case p.timer == nil:
		p.waits = true
		p.timer = time.AfterFunc(pongTime, c.pong)
	default:
		p.waits = true
		p.timer.Reset(pongTime)
	}
}

// pong writes answers that have waited long enough.
func (c *conn) pong() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pongs.waits {
		c.pongs.waits = false
		c.flush()
	}
}

// written notes that all of conn.out is about to be written. conn.mu is held.
func (p *pongs) written() {
	now := time.Now()
	p.bytes, p.wrote, p.gap = 0, now, now.Sub(p.wrote)
	if p.waits {
		p.waits = false
		p.timer.Stop()
	}
}

// writesSoon reports whether there are calls: their replies will follow.
func (c *serverConn) writesSoon() bool { return len(c.streams) > 0 }

// writesSoon reports whether the last two writes followed each other at once: another is likely.
func (c *clientConn) writesSoon() bool {
	return c.pongs.gap < pongTime && time.Since(c.pongs.wrote) < pongTime
}
