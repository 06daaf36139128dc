package testkit

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A Wire injects faults into the connections of a runtime or a client. Each can be turned on and off.
type Wire struct {
	Slow    atomic.Bool  // read only a few bytes at a time
	Storm   atomic.Bool  // send GOAWAY again and again
	Goaways atomic.Int64 // GOAWAY frames sent
	Open    atomic.Int64 // connections that a runtime has accepted and not closed
}

func (w *Wire) listen(l net.Listener) net.Listener { return &wireListener{l, w} }

type wireListener struct {
	net.Listener
	wire *Wire
}

func (l *wireListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.wire.Open.Add(1)
	return &accepted{WireConn{Conn: conn, Wire: l.wire}, sync.OnceFunc(func() { l.wire.Open.Add(-1) })}, nil
}

// accepted is a connection that a runtime has accepted.
type accepted struct {
	WireConn
	closed func()
}

func (c *accepted) Close() error {
	c.closed()
	return c.Conn.Close()
}

// A WireConn is an HTTP/2 connection. It tracks the written frames, so that it can insert GOAWAY
// between two frames.
type WireConn struct {
	net.Conn
	Wire   *Wire
	reads  int
	head   []byte // the written part of a frame's header
	left   int    // unwritten bytes of its payload
	writes int
}

func (c *WireConn) Read(b []byte) (int, error) {
	if !c.Wire.Slow.Load() || len(b) == 0 {
		return c.Conn.Read(b)
	}
	c.reads++
	if c.reads%16 == 0 {
		time.Sleep(50 * time.Microsecond)
	}
	return c.Conn.Read(b[:min(len(b), 1+c.reads%16)])
}

// stormEvery is the number of writes from one GOAWAY to the next. A server writes two or three times
// for each call.
const stormEvery = 5

// goaway names the highest stream id as the last one, so clients must not repeat any call.
var goaway = []byte{0, 0, 8, 7, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0}

func (c *WireConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err != nil {
		return n, err
	}
	c.follow(b)
	if c.writes++; c.Wire.Storm.Load() && len(c.head) == 0 && c.writes%stormEvery == 0 {
		c.Wire.Goaways.Add(1)
		_, err = c.Conn.Write(goaway)
	}
	return n, err
}

// follow tracks the frames in b.
func (c *WireConn) follow(b []byte) {
	const head = 9
	for len(b) > 0 {
		if len(c.head) < head {
			n := min(head-len(c.head), len(b))
			c.head, b = append(c.head, b[:n]...), b[n:]
			if len(c.head) == head {
				c.left = int(c.head[0])<<16 | int(c.head[1])<<8 | int(c.head[2])
			}
		}
		n := min(c.left, len(b))
		if c.left, b = c.left-n, b[n:]; len(c.head) == head && c.left == 0 {
			c.head = c.head[:0]
		}
	}
}
