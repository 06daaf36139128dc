package server

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/fakecri"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// sorted accepts connections that begin with HTTP/2, and passes the others to http, as CRI-O does.
type sorted struct {
	net.Listener
	http *queue
}

type begun struct {
	net.Conn
	r *bufio.Reader
}

func (c begun) Read(p []byte) (int, error) { return c.r.Read(p) }

func (s sorted) Accept() (net.Conn, error) {
	for {
		conn, err := s.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := begun{conn, bufio.NewReader(conn)}
		first, _ := c.r.Peek(3) // fewer bytes are another protocol, too
		if string(first) == "PRI" {
			return c, nil
		}
		s.http.conns <- c
	}
}

// queue is a listener for connections that another listener has accepted.
type queue struct {
	net.Listener
	conns chan net.Conn
	done  chan struct{}
}

func (q *queue) Accept() (net.Conn, error) {
	select {
	case c := <-q.conns:
		return c, nil
	case <-q.done:
		return nil, net.ErrClosed
	}
}

func (q *queue) Close() error { return nil }

// serveLikeCRIO serves CRI and HTTP at one socket until the test ends.
func serveLikeCRIO(t *testing.T, path string, handler http.Handler) {
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	s := sorted{l, &queue{Listener: l, conns: make(chan net.Conn), done: make(chan struct{})}}
	server := &http.Server{Handler: handler}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- fakecri.New(fakecri.Config{Seed: 1}).ServeOn(ctx, s) }()
	go func() { ended <- server.Serve(s.http) }()
	t.Cleanup(func() {
		close(s.http.done)
		server.Close()
		cancel()
		<-ended
		<-ended
	})
}

// overHTTP returns an HTTP client for a socket.
func overHTTP(t *testing.T, path string) *http.Client {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: testkit.Patience}
}

// CRI-O serves HTTP on its CRI socket, and kubelet and cAdvisor ask it for statistics. Through criproxy they used to get none.
func TestHTTPPassesToThePrimary(t *testing.T) {
	n := newNode(t, nil, machineConfig{absent: true}, machineConfig{backend: config.Backend{Name: "beta.io"}})
	serveLikeCRIO(t, n.cfg.Backends[0].Address, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		io.WriteString(w, r.Method+" "+r.URL.Path+" "+string(body))
	}))
	n.isUp(0)
	client := overHTTP(t, n.cfg.Listen)
	for range 2 { // on one connection
		resp, err := client.Post("http://localhost/containers/7f", "text/plain", strings.NewReader("hello"))
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		assert.NoError(t, resp.Body.Close())
		assert.Equal(t, "POST /containers/7f hello", string(body))
	}
	_, err := n.Version(n.ctx(), &runtimeapi.VersionRequest{})
	assert.NoError(t, err, "CRI is served as ever")
}

// criproxy does not read HTTP, so only clients that may make every call can use it.
func TestHTTPDoesNotPassAnAccessList(t *testing.T) {
	n := newNode(t, func(c *config.Config) {
		c.Listeners = []config.Listener{{Path: c.Listen, Access: []config.AccessRule{{Methods: []string{"read-only"}}}}}
	}, machineConfig{absent: true}, machineConfig{backend: config.Backend{Name: "beta.io"}})
	serveLikeCRIO(t, n.cfg.Backends[0].Address, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		assert.Fail(t, "it has passed")
	}))
	n.isUp(0)
	_, err := overHTTP(t, n.cfg.Listen).Get("http://localhost/info")
	assert.Error(t, err)
}

// A connection that passes to the primary ends with this process.
func TestStoppingEndsConnectionsToThePrimary(t *testing.T) {
	n := newNode(t, nil, machineConfig{absent: true}, machineConfig{backend: config.Backend{Name: "beta.io"}})
	asked := make(chan struct{})
	serveLikeCRIO(t, n.cfg.Backends[0].Address, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done()
	}))
	conn, err := net.Dial("unix", n.cfg.Listen)
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "GET /info HTTP/1.1\r\nHost: localhost\r\n\r\n")
	require.NoError(t, err)
	<-asked
	n.stop()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(testkit.Patience)))
	_, err = conn.Read(make([]byte, 1))
	assert.ErrorIs(t, err, io.EOF)
}

// kubelet considers a socket whose path ends like that of CRI-O to be CRI-O's.
func TestAPathLikeCRIOsIsAWarningBeforeAnother(t *testing.T) {
	dir := testkit.SocketDir(t)
	at := filepath.Join(dir, "crio.sock")
	serveLikeCRIO(t, at, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }))
	cfg := &config.Config{Listen: "/run/crio/crio.sock", Backends: []config.Backend{{Address: at}}}
	assert.Empty(t, crioPath(cfg))
	cfg.Backends[0].Address = filepath.Join(dir, "none.sock")
	assert.Contains(t, crioPath(cfg), "takes /run/crio/crio.sock for CRI-O's own socket")
	cfg.Listen = "/run/criproxy.sock"
	assert.Empty(t, crioPath(cfg))
}
