package grpcgo

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"sync/atomic"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/credentials"

	"github.com/criproxy/criproxy/internal/transport"
)

// A listener is a socket that the server serves.
type listener struct {
	net.Listener
	server *Server
	shake  transport.Handshake
}

// Accept waits for a connection, and makes it known to the server.
func (l *listener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: accepted, accepted: accepted, listener: l, gone: make(chan struct{})}
	s := l.server
	s.clock.Tick()
	c.used.Store(s.clock.Now())
	s.mu.Lock()
	s.conns[c] = struct{}{}
	s.mu.Unlock()
	return c, nil
}

// A conn is a connection of a client. grpc-go says nothing about its connections, so a conn reads it off the bytes: the client has
// begun when it has sent something, and has been asked to leave when grpc-go has written a GOAWAY. The Server knows it from
// Accept to Close.
type conn struct {
	net.Conn // as the handshake has secured it
	accepted net.Conn
	listener *listener
	out      frames
	calls    atomic.Int64  // under way
	used     atomic.Uint64 // when the newest call or the connection began, in the time of the server's clock
	leaving  atomic.Bool   // Trim has asked the client to leave
	gone     chan struct{} // closed when the connection is
	left     sync.Once     // closes gone

	// The server's mutex guards these.
	info      credentials.AuthInfo
	begun     bool // the client has sent something after the handshake
	announced bool // grpc-go has written that the client should connect elsewhere
}

// Read notes that the client has begun.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.note(&c.begun)
	}
	return n, err
}

// Write notes a GOAWAY once all of it is written.
func (c *conn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if c.out.endsWith(b[:n]) {
		c.note(&c.announced)
	}
	return n, err
}

// note sets one of the connection's marks.
func (c *conn) note(mark *bool) {
	s := c.listener.server
	s.mu.Lock()
	if !*mark {
		*mark = true
		s.changed.Broadcast()
	}
	s.mu.Unlock()
}

// Close closes the connection, of which the server then knows no more. It may be called several times.
func (c *conn) Close() error {
	s := c.listener.server
	s.mu.Lock()
	delete(s.conns, c)
	s.changed.Broadcast()
	s.mu.Unlock()
	c.left.Do(func() { close(c.gone) })
	return c.Conn.Close()
}

// frames finds the GOAWAY among the frames of HTTP/2 that pass (RFC 9113, section 4.1). It needs no lock: grpc-go writes from one
// goroutine at a time.
type frames struct {
	header []byte // the beginning of a frame's header
	rest   int    // bytes of the frame that are still to come
	goAway bool   // one has begun
}

// endsWith takes the next bytes, and reports whether a GOAWAY frame was among those so far.
func (f *frames) endsWith(b []byte) bool {
	const headerLen = 9
	for len(b) > 0 && !f.goAway {
		if n := min(f.rest, len(b)); n > 0 {
			f.rest, b = f.rest-n, b[n:]
			continue
		}
		n := min(headerLen-len(f.header), len(b))
		f.header, b = append(f.header, b[:n]...), b[n:]
		if len(f.header) == headerLen {
			f.rest = int(binary.BigEndian.Uint32(f.header) >> 8)
			f.goAway = http2.FrameType(f.header[3]) == http2.FrameGoAway
			f.header = f.header[:0]
		}
	}
	return f.goAway
}

// A greeter does the handshake that belongs to the listener of a connection.
type greeter struct{}

// ServerHandshake calls the handshake of the listener that has accepted nc.
func (greeter) ServerHandshake(nc net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, ok := nc.(*conn)
	if !ok {
		return nil, nil, errors.New("grpcgo: the connection comes from another listener")
	}
	if c.listener.shake == nil {
		return c, nil, nil
	}
	secured, info, err := c.listener.shake(c.accepted)
	if err != nil {
		return nil, nil, err
	}
	s := c.listener.server
	s.mu.Lock()
	c.Conn, c.info = secured, info
	s.mu.Unlock()
	return c, info, nil
}

func (greeter) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("grpcgo: these credentials are for servers")
}

func (greeter) Info() credentials.ProtocolInfo            { return credentials.ProtocolInfo{} }
func (g greeter) Clone() credentials.TransportCredentials { return g }
func (greeter) OverrideServerName(string) error           { return nil }
