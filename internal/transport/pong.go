package transport

import "time"

// gRPC's peers ping with nearly every call, to learn how much a connection can carry. To write an
// answer alone would double the writes of a short call, and wake the peer once more. So an answer
// waits for a moment if something else is likely to be written: a server's goes out with the
// reply, a client's with the next request.

// pongTime is how long the answer to a ping waits at most.
const pongTime = 2 * time.Millisecond

// pongs are the answers to pings in conn.out. conn.mu guards them.
type pongs struct {
	bytes int           // how long they are
	wrote time.Time     // when conn.out was last written
	gap   time.Duration // how long before that it was written, too
	timer *time.Timer   // writes them; nil: they never had to wait
	waits bool          // timer runs
}

// flushSettled is flush for a caller that has appended nothing itself: answers to pings may wait.
// c.mu is held; it is released meanwhile.
func (c *conn) flushSettled() {
	p := &c.pongs
	switch {
	case p.bytes == 0 || p.bytes < len(c.out) || !c.side.speaksSoon():
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

// written is called when all of conn.out is about to be written. conn.mu is held.
func (p *pongs) written() {
	now := time.Now()
	p.bytes, p.wrote, p.gap = 0, now, now.Sub(p.wrote)
	if p.waits {
		p.waits = false
		p.timer.Stop()
	}
}

// speaksSoon says that a reply is to come.
func (c *serverConn) speaksSoon() bool { return len(c.streams) > 0 }

// speaksSoon says that one request has followed another at once.
func (c *clientConn) speaksSoon() bool {
	return c.pongs.gap < pongTime && time.Since(c.pongs.wrote) < pongTime
}
