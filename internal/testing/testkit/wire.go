package testkit

import (
	"net"
	"sync"
	"sync/atomic"
)

// A Wire watches the connections of a runtime.
type Wire struct {
	Open atomic.Int64 // connections that a runtime has accepted and not closed
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
	return &accepted{conn, sync.OnceFunc(func() { l.wire.Open.Add(-1) })}, nil
}

// accepted is a connection that a runtime has accepted.
type accepted struct {
	net.Conn
	closed func()
}

func (c *accepted) Close() error {
	c.closed()
	return c.Conn.Close()
}
