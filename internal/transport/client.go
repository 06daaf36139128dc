package transport

import (
	"cmp"
	"context"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

// A ClientConfig says how to reach a server.
type ClientConfig struct {
	// Dial connects to the server. The client closes the connection.
	Dial func(context.Context) (net.Conn, error)

	// Handshake secures a connection. Nil means an insecure connection.
	Handshake func(context.Context, net.Conn) (net.Conn, credentials.AuthInfo, error)

	// Authority is the :authority of each call. The empty string means localhost. UserAgent is
	// optional.
	Authority, UserAgent string

	// Via is a value that the client adds to the field ViaField of each call. The empty string adds none.
	Via string

	// MaxMessage is the length of the longest message that the client receives, in bytes. Zero
	// means DefaultMaxMessage. MaxHeaders is the size of the longest header list that the
	// client keeps. Of a longer one it keeps the code, and as much of the text as fits. Zero means 1 MiB.
	MaxMessage, MaxHeaders int

	// Lost is called for each field of metadata that the client cannot pass on. It must not wait, and
	// must not call the client. Optional.
	Lost func(Loss)

	// Began is called when a call begins on a connection to a server. It must not wait, and must not call
	// the client. Optional.
	Began func(ctx context.Context, to net.Addr)

	// Budget is the memory for messages that do not arrive in one piece. The client passes it the
	// context of the call. Nil means no bound.
	Budget Budget

	// Backoff is the pause between attempts to connect. The zero value means that of Reconnect.
	Backoff backoff.Config

	// ConnectTimeout bounds one attempt to connect. Zero means that of Reconnect.
	ConnectTimeout time.Duration

	// StallTimeout is how long the server may be silent in the middle of a frame, or of a message
	// for which the client has reserved memory. Zero means 30s.
	StallTimeout time.Duration
}

// Reconnect has the pauses with which clients connect, which are those of k8s.io/cri-client, and how long an attempt may take.
var Reconnect = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second},
	MinConnectTimeout: 5 * time.Second,
}

// A Client keeps a connection to one server. It connects on its first call or on Connect, and again
// on the first call after the connection has ended. A call waits for the first attempt to connect,
// and fails at once while the server cannot be reached. A Client is a [codec.Caller], and is safe for
// concurrent use. Its states are those of a google.golang.org/grpc.ClientConn:
//
//	state             connection            a call
//	Idle              none                  begins to connect, and waits
//	Connecting        the first attempt     waits
//	Ready             now                   goes out on now
//	TransientFailure  further attempts      fails with err
//	Shutdown          none, for good        fails
//
// Only set changes the state. It wakes all calls that wait. A connection that takes no more calls makes the state Idle at
// once, and stays in conns until its last call has ended.
type Client struct {
	cfg   ClientConfig
	now   atomic.Pointer[clientConn] // nil while there is none
	ctx   context.Context            // ends when the client is closed
	end   context.CancelFunc
	group sync.WaitGroup // goroutines that connect, read, or say goodbye

	mu      sync.Mutex
	state   connectivity.State
	err     error                    // why state is TransientFailure
	changed chan struct{}            // closed when the state changes
	hurry   chan struct{}            // holds a token if the pause must end now
	last    time.Time                // when the client last began to connect
	conns   map[*clientConn]struct{} // all that have not ended, for Close
}

// NewClient returns a client. It does nothing before its first call or Connect.
func NewClient(cfg ClientConfig) *Client {
	cfg.Authority = cmp.Or(cfg.Authority, "localhost")
	cfg.MaxMessage = cmp.Or(cfg.MaxMessage, DefaultMaxMessage)
	cfg.MaxHeaders = cmp.Or(cfg.MaxHeaders, defaultMaxReply)
	cfg.ConnectTimeout = cmp.Or(cfg.ConnectTimeout, Reconnect.MinConnectTimeout)
	cfg.StallTimeout = cmp.Or(cfg.StallTimeout, stallTimeout)
	cfg.Backoff = cmp.Or(cfg.Backoff, Reconnect.Backoff)
	if cfg.Lost == nil {
		cfg.Lost = func(Loss) {}
	}
	if cfg.Budget == nil {
		cfg.Budget = unlimited{}
	}
	c := &Client{cfg: cfg, changed: make(chan struct{}), hurry: make(chan struct{}, 1), conns: map[*clientConn]struct{}{}}
	c.ctx, c.end = context.WithCancel(context.Background())
	return c
}

// GetState returns the state of the connection.
func (c *Client) GetState() connectivity.State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

// Err returns why the server cannot be reached. Err is nil while the server can be reached, and
// before the first attempt.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// WaitForStateChange waits until the state differs from the given one. It reports false if ctx ends
// first.
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

// Close ends all calls, closes the connections, and returns when their goroutines have ended.
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
// runs with mu held; set does not call it once the client is closed. It reports whether the state changed.
func (c *Client) set(f func() bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == connectivity.Shutdown || !f() {
		return false
	}
	close(c.changed)
	c.changed = make(chan struct{})
	return true
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

// ResetConnectBackoff ends the current pause before the next attempt to connect, and starts over
// with the shortest pause. It does nothing unless the client is pausing.
func (c *Client) ResetConnectBackoff() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == connectivity.TransientFailure {
		signal(c.hurry)
	}
}

// soon is the shortest time between two connections, if the server ends them at once.
const soon = 10 * time.Millisecond

// try tries to connect until it succeeds or the client is closed.
func (c *Client) try() {
	c.mu.Lock()
	wait := max(soon-time.Since(c.last), 0)
	c.last = time.Now().Add(wait)
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
		_ = nc.Close() // the handshake has failed
		return err
	}
	taken := c.set(func() bool {
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

// lose forgets a connection that accepts no more calls.
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

// pick returns the connection for a call, and waits for one if there is none. It returns an error if the
// server cannot be reached.
func (c *Client) pick(ctx context.Context) (*clientConn, error) {
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
		case state == connectivity.TransientFailure:
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
