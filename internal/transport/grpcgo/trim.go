package grpcgo

import (
	"bytes"
	"net"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	"github.com/criproxy/criproxy/internal/transport"
)

// An address is the RemoteAddr of a connection, by which a call finds its connection.
type address struct {
	net.Addr
	of *conn
}

// RemoteAddr returns the address of the client, with which a call gets at its connection.
func (c *conn) RemoteAddr() net.Addr { return address{c.Conn.RemoteAddr(), c} }

// busy counts the calls of a connection.
func busy(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if p, _ := peer.FromContext(ss.Context()); p != nil {
		if at, ok := p.Addr.(address); ok {
			at.of.used.Store(at.of.listener.server.clock.Now())
			at.of.calls.Add(1)
			defer at.of.calls.Add(-1)
		}
	}
	return next(srv, ss)
}

// Trim does what [transport.Server.Trim] does.
func (s *Server) Trim(of net.Listener, most int, silent func(net.Conn) bool) transport.Crowd {
	var crowd transport.Crowd
	var idle, leaving []transport.Idle
	s.mu.Lock()
	if n := len(s.conns); n <= most { // of all listeners
		s.mu.Unlock()
		return transport.Crowd{Left: n, All: n}
	}
	for c := range s.conns {
		if c.listener.Listener != of {
			continue
		}
		crowd.All++
		switch {
		case c.leaving.Load():
			leaving = append(leaving, transport.Idle{Begun: true, Used: c.used.Load(), End: c.cutOff})
			continue
		case c.begun && c.calls.Load() == 0:
			idle = append(idle, transport.Idle{Begun: true, Used: c.used.Load(), End: c.endIdle})
		case !c.begun && silent(c.accepted):
			idle = append(idle, transport.Idle{Used: c.used.Load(), End: c.endSilent})
		}
		crowd.Left++
	}
	s.mu.Unlock()
	crowd.Ended = transport.End(idle, crowd.Left, most)
	crowd.Left -= crowd.Ended
	crowd.All -= transport.End(leaving, crowd.All, 2*most)
	return crowd
}

// endSilent closes a connection that has not begun, and reports whether it did.
func (c *conn) endSilent() bool {
	s := c.listener.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, is := s.conns[c]; !is || c.begun {
		return false
	}
	delete(s.conns, c)
	s.changed.Broadcast()
	return c.accepted.Close() == nil // grpc-go notices
}

// grace is how long a client that was asked to leave may take to close its connection.
const grace = time.Second

// endIdle asks the client to make its next calls on another connection, and closes the connection when it has none. It
// reports false if a call is under way. grpc-go has no method for that.
func (c *conn) endIdle() bool {
	if c.calls.Load() > 0 || c.leaving.Swap(true) {
		return false
	}
	var goAway bytes.Buffer
	_ = http2.NewFramer(&goAway, nil).WriteGoAway(1<<31-1, http2.ErrCodeNo, []byte("idle")) // a buffer takes it
	go func() {
		_ = c.Conn.SetWriteDeadline(time.Now().Add(grace)) // a client that reads nothing must not hold this up
		_, err := c.Conn.Write(goAway.Bytes())             // the client has no calls, so grpc-go is not within a frame
		_ = c.Conn.SetWriteDeadline(time.Time{})           // the answer to a call that has crossed may take its time
		for waiting := err == nil; waiting; {
			select {
			case <-c.gone:
				waiting = false
			case <-time.After(grace):
				waiting = c.calls.Load() > 0
			}
		}
		_ = c.Conn.Close() // grpc-go notices
	}()
	return true
}

// cutOff closes a connection that was asked to leave, unless a call is under way, and reports whether it did.
func (c *conn) cutOff() bool {
	if c.calls.Load() > 0 {
		return false
	}
	_ = c.accepted.Close() // grpc-go notices
	return true
}
