package transport

import (
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/keepalive"
)

// A pingPolicy is how often a client may ping: as gRPC has it, not more than two times too
// often between two frames that bring a call forward. conn.mu guards it.
type pingPolicy struct {
	keepalive.EnforcementPolicy
	last    time.Time
	strikes int
}

const (
	maxPingStrikes = 2
	idlePings      = 2 * time.Hour // between pings of a client that has no call and may not ping
	pingTimeout    = 20 * time.Second
)

// ping counts a ping. Its error ends the connection, with the text that gRPC's clients look for.
// spoke says that a frame of a call was sent since the last ping.
func (p *pingPolicy) ping(calls int, spoke bool) error {
	least := p.MinTime
	if calls == 0 && !p.PermitWithoutStream {
		least = idlePings
	}
	now := time.Now()
	switch {
	case spoke:
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

func (c *serverConn) pinged(ack bool, data [8]byte) error {
	if !ack {
		spoke := c.spoke
		c.spoke = false
		return c.pings.ping(len(c.streams), spoke)
	}
	if data == drainPing && c.leaving == told {
		c.leaveNow()
	}
	return nil
}

// keepalive pings a peer that has been silent for a while, and cuts it off if it stays so.
func (c *conn) keepalive(after, timeout time.Duration) {
	if after <= 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	pinged := false
	c.pulse = time.AfterFunc(after, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		switch {
		case c.err != nil:
			return
		case c.heard.Swap(false):
			pinged = false
			c.pulse.Reset(after)
		case !pinged && (len(c.streams) > 0 || c.cfg.pingIdle):
			pinged = true
			c.out = appendPing(c.out, [8]byte{}, 0)
			c.flush()
			c.pulse.Reset(timeout)
		case !pinged:
			c.pulse.Reset(after)
		default:
			c.broken = errSilent
			go c.nc.Close() // the reader notices
		}
	})
}
