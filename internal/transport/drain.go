package transport

import (
	"time"

	"golang.org/x/net/http2"
)

// A drainState is how far the graceful shutdown of a connection is: RFC 9113, section 6.8.
//
//	state      what the server has sent               it takes     the next state follows when
//	accepting  nothing                                every call   the server drains, or Trim ends the connection
//	announced  a GOAWAY for no call yet, and a ping   every call   the client answers the ping, or takes too long
//	closing    a GOAWAY with the id of the last call  no new call  none: the connection closes with its last call
//
// In the state announced the client knows that it should make no more calls, but some may be on their way. Those were sent
// before the client's answer to the ping, so after that answer there are none.
type drainState int

const (
	accepting drainState = iota
	announced
	closing
)

var drainPing = [8]byte{'c', 'r', 'i', 'p', 'r', 'o', 'x', 'y'}

// drainAnswer bounds how long a client may take to answer the ping.
const drainAnswer = 5 * time.Second

// drain begins the graceful shutdown of the connection.
func (c *serverConn) drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leaving != accepting || c.err != nil {
		return
	}
	c.leaving = announced
	c.out = appendGoAway(c.out, lastStreamID, http2.ErrCodeNo, "graceful_stop")
	c.out = appendPing(c.out, drainPing, 0)
	c.flush()
	time.AfterFunc(drainAnswer, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.leaveNow()
	})
}

// leaveNow accepts no more calls. conn.mu is held.
func (c *serverConn) leaveNow() {
	if c.leaving != announced || c.err != nil {
		return
	}
	c.leaving = closing
	c.final = c.last
	c.out = appendGoAway(c.out, c.last, http2.ErrCodeNo, "graceful_stop")
	c.flush()
	c.drained()
}

// drained closes the connection if it is draining and its last call has ended. conn.mu is held.
func (c *serverConn) drained() {
	if c.leaving != closing || c.running > 0 || c.err != nil {
		return
	}
	c.flush()
	c.err = errGone
	idle := c.untilIdle()
	go func() {
		if idle != nil {
			select {
			case <-idle:
			case <-time.After(lingerTime):
			}
		}
		// The reader goes on until the client closes the connection too, or until the deadline.
		c.mu.Lock()
		_ = c.nc.SetReadDeadline(time.Now().Add(lingerTime))
		c.mu.Unlock()
		if half, ok := c.nc.(interface{ CloseWrite() error }); !ok || half.CloseWrite() != nil {
			_ = c.nc.Close()
		}
	}()
}
