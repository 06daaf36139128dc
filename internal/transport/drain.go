package transport

import (
	"time"

	"golang.org/x/net/http2"
)

// A drainState is how far the graceful shutdown of a connection is: RFC 9113, section 6.8. First
// the server asks the client to make no more calls, with GOAWAY and a ping. The server still
// accepts calls that are under way: once the client has answered the ping, there are none. Then
// the server sends another GOAWAY with the id of the last call, and closes the connection when
// that call has ended.
type drainState int

const (
	staying drainState = iota
	told               // the client was asked to make no more calls
	last               // the server accepts no more calls
)

var drainPing = [8]byte{'c', 'r', 'i', 'p', 'r', 'o', 'x', 'y'}

// drainAnswer bounds how long a client may take to answer the ping.
const drainAnswer = 5 * time.Second

// drain begins the graceful shutdown of the connection.
func (c *serverConn) drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leaving != staying || c.err != nil {
		return
	}
	c.leaving = told
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
	if c.leaving != told || c.err != nil {
		return
	}
	c.leaving = last
	c.final = c.last
	c.out = appendGoAway(c.out, c.last, http2.ErrCodeNo, "graceful_stop")
	c.flush()
	c.drained()
}

// refuses reports whether a call comes after the last one that the connection accepts.
func (c *serverConn) refuses(id uint32) bool { return c.leaving == last && id > c.final }

// drained closes the connection if it is draining and its last call has ended. conn.mu is held.
func (c *serverConn) drained() {
	if c.leaving != last || c.running > 0 || c.err != nil {
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
