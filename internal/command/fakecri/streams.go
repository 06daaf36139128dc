package fakecri

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/moby/spdystream"
)

// maxPromised is how many unused URLs are kept.
const maxPromised = 1000

// A streaming serves the connection of a client to a promised URL.
type streaming struct {
	protocols []string // from which the client may choose, the best first
	serve     func(ctx context.Context, c *streamConn)
}

// promise returns a URL at which s is served, once. Unless ServeStreams runs, no process listens
// there.
func (rt *Runtime) promise(what string, s streaming) string {
	path := "/" + what + "/" + rt.newID()[:8] // hard enough to guess
	if rt.streamBase == "" {
		return rt.cfg.StreamURL + path
	}
	if len(rt.promised) >= maxPromised {
		clear(rt.promised)
	}
	rt.promised[path] = s
	return rt.streamBase + path
}

// ServeStreams serves Exec, Attach and PortForward at l, in SPDY as crictl and kubelet speak it,
// until ctx ends. From now on the URLs of these calls lead to l.
func (rt *Runtime) ServeStreams(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	rt.mu.Lock()
	rt.streamBase = "http://" + l.Addr().String()
	rt.mu.Unlock()
	var connections sync.WaitGroup // the HTTP server does not track SPDY connections
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		connections.Add(1)
		defer connections.Done()
		rt.stream(ctx, w, r)
	})}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	var err error
	select {
	case <-ctx.Done():
		_ = server.Close() // the server ends in any case
		<-served
	case err = <-served:
		err = fmt.Errorf("serving streams on %s: %w", l.Addr(), err)
	}
	cancel()
	connections.Wait()
	return err
}

func (rt *Runtime) stream(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	rt.mu.Lock()
	s, ok := rt.promised[r.URL.Path]
	delete(rt.promised, r.URL.Path)
	rt.mu.Unlock()
	if !ok {
		http.NotFound(w, r)
		return
	}
	c, err := acceptSPDY(w, r, s.protocols)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	serving, gone := context.WithCancel(ctx)
	defer gone()
	go func() {
		<-c.CloseChan()
		gone()
	}()
	s.serve(serving, c)
	c.close(ctx)
}

// A streamConn is a SPDY connection on which a client opens streams.
type streamConn struct {
	*spdystream.Connection
	raw    net.Conn
	opened chan *spdystream.Stream
	served chan struct{}
}

// acceptSPDY upgrades a request to a SPDY connection.
func acceptSPDY(w http.ResponseWriter, r *http.Request, protocols []string) (*streamConn, error) {
	const name, header = "SPDY/3.1", "X-Stream-Protocol-Version"
	if !strings.EqualFold(r.Header.Get("Upgrade"), name) {
		return nil, fmt.Errorf("want a request with the header Upgrade: %s", name)
	}
	offered := strings.FieldsFunc(strings.Join(r.Header.Values(header), ","), func(c rune) bool { return c == ',' || c == ' ' })
	chosen := slices.IndexFunc(protocols, func(p string) bool { return slices.Contains(offered, p) })
	if chosen < 0 {
		return nil, fmt.Errorf("%s offers %q; want one of %q", header, offered, protocols)
	}
	w.Header().Set("Connection", "Upgrade")
	w.Header().Set("Upgrade", name)
	w.Header().Set(header, protocols[chosen])
	w.WriteHeader(http.StatusSwitchingProtocols)
	raw, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, err
	}
	conn, err := spdystream.NewConnection(&bufferedConn{raw, buffered.Reader}, true)
	if err != nil {
		_ = raw.Close()
		return nil, err
	}
	c := &streamConn{conn, raw, make(chan *spdystream.Stream), make(chan struct{})}
	go func() {
		defer close(c.served)
		conn.Serve(func(s *spdystream.Stream) {
			if s.SendReply(http.Header{}, false) != nil {
				return
			}
			select {
			case c.opened <- s:
			case <-conn.CloseChan():
			}
		})
	}()
	return c, nil
}

// close waits until the client has closed the connection, and then closes it. Only the client knows
// when it has read everything.
func (c *streamConn) close(ctx context.Context) {
	select {
	case <-c.CloseChan():
	case <-ctx.Done():
	case <-time.After(10 * time.Second):
	}
	_ = c.raw.Close() // also ends the SPDY connection, without its wait of a second for streams
	<-c.served
}

// next waits for the next stream that the client opens. It returns nil if the client opens none.
func (c *streamConn) next(ctx context.Context) *spdystream.Stream {
	select {
	case s := <-c.opened:
		return s
	case <-ctx.Done():
		return nil
	}
}

// A bufferedConn is a connection with a reader that has buffered some of its input.
type bufferedConn struct {
	net.Conn
	r *bufio.Reader
}

func (c *bufferedConn) Read(b []byte) (int, error) { return c.r.Read(b) }
