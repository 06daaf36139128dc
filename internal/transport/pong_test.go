package transport_test

import (
	"bytes"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/transport"
)

// noted is a listener whose connections note each write.
type noted struct {
	net.Listener
	mu     sync.Mutex
	writes [][]byte
}

type notedConn struct {
	net.Conn
	on *noted
}

func (l *noted) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	return notedConn{nc, l}, err
}

func (c notedConn) Write(b []byte) (int, error) {
	c.on.mu.Lock()
	c.on.writes = append(c.on.writes, bytes.Clone(b))
	c.on.mu.Unlock()
	return c.Conn.Write(b)
}

func isPing(f http2.Frame) bool { return f.Header().Type == http2.FramePing }

func TestAPongGoesOutWithTheReply(t *testing.T) {
	l := &noted{Listener: listen(t)}
	serve(t, l, transport.ServerConfig{Pings: anyPings, Handler: func(_ any, ss grpc.ServerStream) error {
		return ss.SendMsg(codec.NewFrame([]byte("reply")))
	}})
	p := rawClient(t, l)
	// A pong goes out alone if the machine stalls for longer than a pong may wait, but not each time.
	for i := range uint32(100) {
		p.headers(2*i+1, true, p.request())
		require.NoError(t, p.framer.WritePing(false, [8]byte{'p', 'o', 'n', 'g'}))
		require.NoError(t, p.say())
		p.ends(2*i + 1)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	alone := slices.DeleteFunc(l.writes, func(w []byte) bool { return !bytes.Contains(w, []byte("pong")) || bytes.Contains(w, []byte("reply")) })
	assert.Less(t, len(alone), 50, "pongs that went out alone")
}

func TestAPongDoesNotWaitForALongCall(t *testing.T) {
	over := make(chan struct{})
	l := served(t, func(any, grpc.ServerStream) error {
		<-over
		return nil
	})
	p := rawClient(t, l)
	p.headers(1, true, p.request())
	require.NoError(t, p.framer.WritePing(false, [8]byte{1}))
	require.NoError(t, p.say())
	assert.NotNil(t, p.until(isPing), "the connection was closed")
	close(over)
	p.ends(1)
}
