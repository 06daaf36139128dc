package server

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/server/listen"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// clientGreeting is the beginning of an HTTP/2 client's connection: its preface and settings.
const clientGreeting = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// drained is a proxy at a socket and at an address with TLS, which the test ends.
func drained(t *testing.T) (p *Proxy, end context.CancelFunc, ended <-chan error) {
	dir := testkit.SocketDir(t)
	files := tlsFiles(dir, "ours")
	newAuthority(t, "ours").write(files, "criproxy")
	spare := listenTCP(t, "127.0.0.1:0")
	require.NoError(t, spare.Close())
	cfg := healthConfig(t, dir, config.Backend{Address: filepath.Join(dir, "none.sock")})
	cfg.Listeners = []config.Listener{{Path: spare.Addr().String(), TLS: &config.TLS{Cert: files.Cert, Key: files.Key}}}
	require.NoError(t, Check(cfg))
	p, err := New(cfg, Options{})
	require.NoError(t, err)
	require.NoError(t, p.Open(nil))
	ctx, end := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(end)
	return p, end, done
}

// greeting returns how many connections of the socket are in the handshake.
func greeting(p *Proxy, s *listen.Socket) int {
	_, all := p.server.Peers()
	n := 0
	for _, l := range all {
		if l == s {
			n++
		}
	}
	return n
}

// say connects to the socket and sends text.
func say(t *testing.T, s *listen.Socket, text string) net.Conn {
	conn, err := net.Dial(s.Addr().Network(), s.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() }) // the error would change nothing
	_, err = io.WriteString(conn, text)
	require.NoError(t, err)
	return conn
}

// The server waits for the beginning of each connection, so any client could make a stop take 10s:
// longer than kubelet waits, and longer than criproxy may take.
func TestASilentClientDoesNotHoldUpTheEnd(t *testing.T) {
	for name, stop := range map[string]func(*Proxy, context.CancelFunc){
		"a stop":     func(_ *Proxy, end context.CancelFunc) { end() },
		"a handover": func(p *Proxy, _ context.CancelFunc) { p.handOver() },
		"a stop after a handover": func(p *Proxy, end context.CancelFunc) {
			p.handOver()
			testkit.Eventually(t, "it drains", p.draining.Load)
			end()
		},
		"a socket that fails": func(p *Proxy, _ context.CancelFunc) { p.fail(io.ErrUnexpectedEOF) },
	} {
		t.Run(name, func(t *testing.T) {
			p, end, ended := drained(t)
			t.Parallel() // not earlier: creating a socket file changes the umask, which all tests share
			for _, s := range p.sockets() {
				say(t, s, "")
				say(t, s, clientGreeting[:1])
				testkit.Eventually(t, "they are waited for", func() bool { return greeting(p, s) == 2 })
			}
			stop(p, end)
			select {
			case <-ended:
			case <-time.After(ExitBound):
				require.Fail(t, "it does not end: it waits for a client that says nothing")
			}
		})
	}
}

// A client that connects just before a stop or a handover is still in its greeting, and is served.
func TestANewClientIsServedWhenTheProcessStops(t *testing.T) {
	p, end, ended := drained(t)
	s := p.sockets()[0]
	conn := say(t, s, "")
	testkit.Eventually(t, "it is waited for", func() bool { return greeting(p, s) == 1 })
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		p.drain(t.Context(), testkit.Patience, testkit.Patience)
	}()
	testkit.Eventually(t, "it drains", p.draining.Load)
	_, err := io.WriteString(conn, clientGreeting)
	require.NoError(t, err)
	require.NoError(t, conn.SetDeadline(time.Now().Add(testkit.Patience)))
	left := false
	for !left {
		var header [9]byte // of a frame
		_, err := io.ReadFull(conn, header[:])
		require.NoError(t, err, "it is cut off without a word")
		const goAway = 7
		left = header[3] == goAway
		_, err = io.CopyN(io.Discard, conn, int64(binary.BigEndian.Uint32(header[:4])>>8))
		require.NoError(t, err)
	}
	require.NoError(t, conn.Close())
	<-drained
	end()
	assert.NoError(t, <-ended)
}

func TestClientsAreListedUntilTheyLeave(t *testing.T) {
	p, end, ended := drained(t)
	s := p.sockets()[0]
	stays := say(t, s, clientGreeting)
	for range 100 {
		require.NoError(t, say(t, s, clientGreeting).Close())
	}
	testkit.Eventually(t, "one is left", func() bool {
		all := p.connected()
		return len(all) == 1 && strings.HasPrefix(all[0], "1 of server.test, uid ") && strings.HasSuffix(all[0], " at "+s.Path)
	})
	require.NoError(t, stays.Close())
	testkit.Eventually(t, "none is left", func() bool { return len(p.connected()) == 0 })
	end()
	require.NoError(t, <-ended)
}
