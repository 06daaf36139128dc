package admin

import (
	"net"
	"net/http"
	"slices"
	"sync"
)

// mostIdle is how many connections without a request a server keeps open.
const mostIdle = 32

// A crowd is the connections of a server that have no request. A client that leaves its connections open must not take all
// file descriptors of the process: those without a request for the longest time end first.
type crowd struct {
	mu   sync.Mutex
	idle []net.Conn // the oldest first
}

// note is called when a connection changes its state.
func (c *crowd) note(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = slices.DeleteFunc(c.idle, func(one net.Conn) bool { return one == conn })
	if state != http.StateNew && state != http.StateIdle {
		return
	}
	c.idle = append(c.idle, conn)
	if len(c.idle) > mostIdle {
		_ = c.idle[0].Close() // the server notices
		c.idle = c.idle[1:]
	}
}
