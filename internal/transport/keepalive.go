package transport

import (
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/keepalive"
)

// A pingPolicy limits how often a client may ping. As in grpc-go, a client may ping too early twice
// between two frames of calls. conn.mu guards it.
type pingPolicy struct {
	keepalive.EnforcementPolicy
	last    time.Time // of the last ping
	strikes int       // pings that came too early
}

const (
	maxPingStrikes = 2
	idlePings      = 2 * time.Hour // least pause between pings without calls, where the policy forbids them
	pingTimeout    = 20 * time.Second
)

// ping counts a ping. Its error ends the connection, with the text that gRPC clients look for.
// sentData says that the server has sent a frame of a call since the last ping.
func (p *pingPolicy) ping(calls int, sentData bool) error {
	least := p.MinTime
	if calls == 0 && !p.PermitWithoutStream {
		least = idlePings
	}
	now := time.Now()
	switch {
	case sentData:
		p.strikes = 0
	case p.last.Add(least).After(now):
		p.strikes++
	}
	p.last = now
	if p.strikes > maxPingStrikes {
		return connError{http2.ErrCodeEnhanceYourCalm, "too_many_pings"}
	}
	return nil
}

// pinged counts a ping of the client, or goes on with the drain if the client has answered the server's.
func (c *serverConn) pinged(ack bool, data [8]byte) error {
	if !ack {
		sentData := c.sentData
		c.sentData = false
		return c.pings.ping(len(c.streams), sentData)
	}
	if data == drainPing && c.leaving == announced {
		c.leaveNow()
	}
	return nil
}

// keepalive pings a client that has been silent for PingAfter, and closes the connection if the client stays silent for
// PingTimeout. Anything that the client sends counts as an answer.
func (c *serverConn) keepalive() {
	after := c.server.cfg.PingAfter
	if after <= 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	pinged := false
	c.pinger = time.AfterFunc(after, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		switch {
		case c.err != nil:
			return
		case c.heard.Swap(false):
			pinged = false
			c.pinger.Reset(after)
		case !pinged:
			pinged = true
			c.out = appendPing(c.out, [8]byte{}, 0)
			c.flush()
			c.pinger.Reset(c.server.cfg.PingTimeout)
		default:
			c.broken = errSilent
			go c.nc.Close() // the reader notices
		}
	})
}
