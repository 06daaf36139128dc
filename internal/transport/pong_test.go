package transport_test

import (
	"bytes"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

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

// ponged reports whether a frame answers a ping with data that begins with n.
func ponged(n byte) func(http2.Frame) bool {
	return func(f http2.Frame) bool {
		ping, ok := f.(*http2.PingFrame)
		return ok && ping.IsAck() && ping.Data[0] == n
	}
}

func TestAPongDoesNotWaitForALongCall(t *testing.T) {
	over := make(chan struct{})
	l := served(t, func(_ any, ss grpc.ServerStream) error {
		if name, _ := grpc.MethodFromServerStream(ss); name == "/test.Service/Long" {
			<-over
		}
		return nil
	})
	p := rawClient(t, l)
	ping := func(n byte) {
		require.NoError(t, p.framer.WritePing(false, [8]byte{n}))
		require.NoError(t, p.say())
	}
	p.headers(1, true, p.requestTo("/test.Service/Long"))
	id := uint32(1)
	for n := byte(1); n < 10; n++ {
		ping(0) // the timer starts
		for range 10 {
			id += 2
			p.headers(id, true, p.request())
			require.NoError(t, p.say())
			p.ends(id) // takes the answer along
		}
		ping(n) // while the timer runs, unless the machine stalls
		assert.NotNil(t, p.until(ponged(n)), "the connection was closed")
	}
	close(over)
	p.ends(1)
}

func TestAPongDoesNotWaitForTheNextCall(t *testing.T) {
	const calls = 10
	answered := make(chan bool, 1)
	made := byte(0)
	l := scripted(t, func(p *rawPeer, call *http2.MetaHeadersFrame) {
		made++
		_ = p.framer.WritePing(false, [8]byte{made})
		p.good(call.StreamID)
		_ = p.say()
		if made == calls {
			answered <- p.until(ponged(made)) != nil
		}
	})
	c := newClient(t, transport.ClientConfig{Dial: dialer(l)})
	for range calls {
		require.NoError(t, invoke(t, c))
	}
	select {
	case is := <-answered:
		assert.True(t, is, "the connection was closed")
	case <-time.After(2 * patience):
		t.Fatal("the ping that came with the last reply has no answer")
	}
}
