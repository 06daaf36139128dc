package transport

import (
	"context"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

// A ClientConfig says how to reach a server.
type ClientConfig struct {
	// Dial connects to the server. The client takes the connection over, and closes it.
	Dial func(context.Context) (net.Conn, error)

	// Handshake secures a connection. Optional: it is not secured.
	Handshake func(context.Context, net.Conn) (net.Conn, credentials.AuthInfo, error)

	// Authority is the name by which the server is called. Optional: localhost. UserAgent is
	// optional as well.
	Authority, UserAgent string

	// MaxMessage is the longest message that is received, MaxHeaders the longest list of header
	// fields. Zero means DefaultMaxMessage, and DefaultMaxHeaders.
	MaxMessage, MaxHeaders int

	// Budget is the memory for messages that do not come in one piece. It is asked with the
	// context of the call. Optional: there is enough.
	Budget Budget

	// Backoff says when to try again to connect. Optional: as kubelet does, in k8s.io/cri-client,
	// from 100ms to 3s.
	Backoff backoff.Config

	// ConnectTimeout bounds one attempt to connect. Zero means 5s.
	ConnectTimeout time.Duration

	// StallTimeout is how long the server may be silent in the middle of a frame, or of a message
	// for which memory was taken. Zero means 30s.
	StallTimeout time.Duration

	// PingAfter is how long the server may be silent, while there are calls, before the client
	// pings it. Zero means that the client does not ping. PingTimeout is how long the server may
	// take to answer before the client closes the connection. Zero means 20s.
	PingAfter, PingTimeout time.Duration
}

// A Client keeps a connection to one server. It connects with its first call or with Connect,
// and again with the first call after the connection has ended. A call waits for the first
// attempt to connect, and fails at once while the server cannot be reached. A Client is a
// [grpc.ClientConnInterface] for messages of package codec, and safe for concurrent use. It
// supports these call options: Header, Trailer, Peer, WaitForReady, OnFinish, and the limits
// of messages.
type Client struct {
	cfg   ClientConfig
	now   atomic.Pointer[clientConn] // nil while there is none
	ctx   context.Context            // ends when the client is closed
	end   context.CancelFunc
	group sync.WaitGroup // goroutines that connect, and that read

	mu      sync.Mutex
	state   connectivity.State
	err     error         // why it is TransientFailure
	changed chan struct{} // closed when the state has changed
	hurry   chan struct{} // holds a token if the pause is to end
	last    time.Time     // when it connected last
	conns   map[*clientConn]struct{}
}

// NewClient returns a client. It does nothing before its first call, or Connect.
func NewClient(cfg ClientConfig) *Client {
	cfg.Authority = orDefault(cfg.Authority, "localhost")
	cfg.MaxMessage = orDefault(cfg.MaxMessage, DefaultMaxMessage)
	cfg.MaxHeaders = orDefault(cfg.MaxHeaders, DefaultMaxHeaders)
	cfg.ConnectTimeout = orDefault(cfg.ConnectTimeout, 5*time.Second)
	cfg.StallTimeout = orDefault(cfg.StallTimeout, stallTimeout)
	cfg.PingTimeout = orDefault(cfg.PingTimeout, pingTimeout)
	cfg.Backoff = orDefault(cfg.Backoff, backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second})
	if cfg.Budget == nil {
		cfg.Budget = unlimited{}
	}
	c := &Client{cfg: cfg, changed: make(chan struct{}), hurry: make(chan struct{}, 1), conns: map[*clientConn]struct{}{}}
	c.ctx, c.end = context.WithCancel(context.Background())
	return c
}

// GetState is the state of the connection.
func (c *Client) GetState() connectivity.State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

// Err is why the server cannot be reached. It is nil if it can be, or before the first attempt.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// WaitForStateChange waits until the state is another one than from. It reports false if ctx
// ends before.
func (c *Client) WaitForStateChange(ctx context.Context, from connectivity.State) bool {
	for {
		c.mu.Lock()
		now, changed := c.state, c.changed
		c.mu.Unlock()
		if now != from {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// Close closes the connections, ends all calls, and returns when nothing is left of them.
func (c *Client) Close() error {
	c.set(func() bool {
		c.state, c.err = connectivity.Shutdown, nil
		c.now.Store(nil)
		return true
	})
	c.end()
	c.mu.Lock()
	for conn := range c.conns {
		c.group.Go(conn.goodbye)
	}
	c.mu.Unlock()
	c.group.Wait()
	return nil
}

// set calls f, which changes the state, and wakes the waiting calls if f reports that it did. f
// runs with mu held; set does not call it once the client is closed.
func (c *Client) set(f func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == connectivity.Shutdown || !f() {
		return
	}
	close(c.changed)
	c.changed = make(chan struct{})
}

// Connect begins to connect, unless there is a connection or an attempt is under way.
func (c *Client) Connect() {
	c.set(func() bool {
		if c.state != connectivity.Idle {
			return false
		}
		c.state = connectivity.Connecting
		c.group.Go(c.try)
		return true
	})
}

// ResetConnectBackoff ends the pause before the next attempt to connect, if there is one now, and
// has the pauses begin anew.
func (c *Client) ResetConnectBackoff() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != connectivity.TransientFailure {
		return
	}
	select {
	case c.hurry <- struct{}{}:
	default: // there is a token already
	}
}

// soon is the least time between two connections, if the server ends them at once.
const soon = 10 * time.Millisecond

// try connects, however often it takes.
func (c *Client) try() {
	c.mu.Lock()
	wait := soon - time.Since(c.last)
	c.last = time.Now()
	c.mu.Unlock()
	for delay := float64(c.cfg.Backoff.BaseDelay); ; delay = min(delay*c.cfg.Backoff.Multiplier, float64(c.cfg.Backoff.MaxDelay)) {
		if wait > 0 {
			select {
			case <-time.After(wait):
			case <-c.hurry:
				delay = float64(c.cfg.Backoff.BaseDelay)
			case <-c.ctx.Done():
				return
			}
		}
		err := c.attempt()
		if err == nil || c.ctx.Err() != nil {
			return
		}
		c.set(func() bool {
			c.state, c.err = connectivity.TransientFailure, err
			return true
		})
		wait = time.Duration(delay * (1 + c.cfg.Backoff.Jitter*(2*rand.Float64()-1)))
	}
}

// attempt connects once.
func (c *Client) attempt() error {
	ctx, cancel := context.WithTimeout(c.ctx, c.cfg.ConnectTimeout)
	defer cancel()
	nc, err := c.cfg.Dial(ctx)
	if err != nil {
		return err
	}
	conn, err := c.greet(ctx, nc)
	if err != nil {
		_ = nc.Close() // it has failed
		return err
	}
	taken := false
	c.set(func() bool {
		taken = true
		c.state, c.err = connectivity.Ready, nil
		c.conns[conn] = struct{}{}
		c.now.Store(conn)
		return true
	})
	if !taken {
		_ = conn.nc.Close() // the client was closed meanwhile
		return nil
	}
	c.group.Go(func() {
		conn.over(conn.read())
		c.lose(conn)
		c.mu.Lock()
		delete(c.conns, conn)
		c.mu.Unlock()
	})
	return nil
}

// lose forgets a connection that takes no more calls.
func (c *Client) lose(conn *clientConn) {
	c.set(func() bool {
		if c.now.Load() != conn {
			return false
		}
		c.state = connectivity.Idle
		c.now.Store(nil)
		return true
	})
}

var errClosed = status.Error(codes.Canceled, "transport: the client is closed")

// pick returns the connection for a call, and waits for one if need be: for as long as it
// takes if wait is set, otherwise unless the server cannot be reached.
func (c *Client) pick(ctx context.Context, wait bool) (*clientConn, error) {
	for {
		if conn := c.now.Load(); conn != nil {
			return conn, nil
		}
		c.mu.Lock()
		state, err, changed := c.state, c.err, c.changed
		there := c.now.Load() != nil
		c.mu.Unlock()
		switch {
		case there:
			continue
		case state == connectivity.Shutdown:
			return nil, errClosed
		case state == connectivity.TransientFailure && !wait:
			return nil, status.Errorf(codes.Unavailable, "connection error: desc = %q", err.Error())
		case state == connectivity.Idle:
			c.Connect()
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
}
