package transport

import (
	"time"

	"golang.org/x/net/http2"
)

// A drainState is how far a connection is on its way to its end, which the server wants:
// RFC 9113, section 6.8. First the server asks the client to make no more calls. It still takes
// the calls that are on their way: once the client has answered a ping, there are no more. Then
// the server says which call was the last, and closes the connection when that has ended.
type drainState int

const (
	staying drainState = iota
	told
	last
)

var drainPing = [8]byte{'c', 'r', 'i', 'p', 'r', 'o', 'x', 'y'}

// drainAnswer bounds how long a client may take to answer the ping.
const drainAnswer = 5 * time.Second

// drain begins to end the connection.
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

// leaveNow takes no more calls. conn.mu is held.
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

// refuses reports whether a call comes after the last one.
func (c *serverConn) refuses(id uint32) bool { return c.leaving == last && id > c.final }

// drained closes the connection if it is to end and its last call has ended. conn.mu is held.
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
		// The reader reads on until the client has closed the connection as well, or is cut off.
		c.mu.Lock()
		_ = c.nc.SetReadDeadline(time.Now().Add(lingerTime))
		c.mu.Unlock()
		if half, ok := c.nc.(interface{ CloseWrite() error }); !ok || half.CloseWrite() != nil {
			_ = c.nc.Close()
		}
	}()
}
