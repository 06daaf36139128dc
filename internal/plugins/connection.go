package plugins

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/host"
	"github.com/criproxy/criproxy/internal/transport"
)

// connection is the connection to one plugin. It is made when the plugin is registered, stays
// up between calls, and closes when it has been retired and the last call on it has ended.
type connection struct {
	address string
	cc      *grpc.ClientConn
	calls   grpc.ClientConnInterface // cc, or a replacement in tests
	failed  atomic.Pointer[error]    // why the latest attempt to connect failed, of those that did
	cgroup  atomic.Pointer[string]   // of the process to which it connected last
	changed func()

	mu      sync.Mutex // guards the fields below
	users   int
	retired bool
	now     string        // see state
	why     error         // why it is down
	waited  time.Duration // how long calls have waited since the latest answer
	until   time.Time     // when the latest call without an answer ended
	hangs   time.Duration // a plugin that lets calls wait that long, and answers none, is down
}

// maxPause is the longest pause between attempts to connect. It is much shorter than the time that
// a plugin has to answer.
const maxPause = 200 * time.Millisecond

// newConnection connects to a socket. It calls ready whenever it has connected to a plugin there, and changed whenever
// its state has changed, or the reason for it.
func newConnection(address string, maxMessage int, ready, changed func()) *connection {
	c := &connection{address: address, changed: changed, now: StateConnecting, hangs: 10 * time.Second}
	cc, err := grpc.NewClient("passthrough:///plugin", // the path may not be a valid URL
		grpc.WithContextDialer(c.dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(codec.Raw),
			grpc.MaxCallRecvMsgSize(maxMessage),
			grpc.MaxCallSendMsgSize(maxMessage),
		),
		// Short pauses, so that a plugin that comes back is asked soon. ResetConnectBackoff would end
		// a pause at once, but as of gRPC 1.85 it reads a map without its lock.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.2, Jitter: 0.2, MaxDelay: maxPause},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(0),
	)
	if err != nil {
		panic(err) // cannot happen: the target and the options are always the same
	}
	c.cc, c.calls = cc, cc
	go c.stayUp(ready)
	return c
}

// stayUp keeps the connection up between calls, until it is closed: the package must know which
// process serves a plugin before the first call.
func (c *connection) stayUp(ready func()) {
	for {
		s := c.cc.GetState()
		switch s {
		case connectivity.Idle:
			c.cc.Connect()
		case connectivity.Ready:
			ready()
			c.become(func() (string, error) { c.waited = 0; return StateReady, nil })
		case connectivity.TransientFailure:
			c.become(func() (string, error) { return StateDown, c.failure() })
		case connectivity.Shutdown:
			return
		}
		c.wait(s)
	}
}

// wait returns when the connection has another state than s, at the latest when it closes. While there is no connection it
// returns after a second, because attempts may fail for another reason.
func (c *connection) wait(s connectivity.State) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if s == connectivity.TransientFailure {
		defer time.AfterFunc(time.Second, cancel).Stop()
	}
	c.cc.WaitForStateChange(ctx, s)
}

func (c *connection) dial(ctx context.Context, _ string) (net.Conn, error) {
	nc, err := c.open(ctx)
	if err != nil {
		return nil, err
	}
	if cgroup := cgroupOf(nc); cgroup != "" {
		c.cgroup.Store(&cgroup)
	}
	return &attempt{Conn: nc, of: c}, nil
}

// open opens a connection to the socket, or notes why it cannot.
func (c *connection) open(ctx context.Context) (net.Conn, error) {
	nc, err := (&net.Dialer{}).DialContext(ctx, "unix", c.address)
	if err != nil {
		c.failed.Store(&err)
	}
	return nc, err
}

// attempt is a connection that was accepted. It may still fail before the plugin has answered, and notes why: gRPC tells
// only that it failed.
type attempt struct {
	net.Conn
	of   *connection
	over atomic.Bool // the plugin has answered, or the connection has ended
}

func (a *attempt) Read(b []byte) (int, error) {
	n, err := a.Conn.Read(b)
	a.note(n > 0, err)
	return n, err
}

func (a *attempt) Write(b []byte) (int, error) {
	n, err := a.Conn.Write(b)
	a.note(false, err)
	return n, err
}

// note notes what came first, an answer or an error. A process that ends may still accept connections, and breaks them: only
// the next attempt tells whether anything listens.
func (a *attempt) note(answered bool, err error) {
	if !answered && err == nil || a.over.Swap(true) {
		return
	}
	var why error
	switch {
	case answered:
		why = errNotPlugin
	case errors.Is(err, net.ErrClosed), errors.Is(err, os.ErrDeadlineExceeded): // gRPC has waited long enough
		why = errSilent
	default:
		nc, err := a.of.open(context.Background()) // which takes no time
		if err != nil {
			return
		}
		_ = nc.Close() // nothing was sent
		why = errBroken
	}
	a.of.failed.Store(&why)
}

// Why an attempt has failed that was accepted.
var (
	errNotPlugin = errors.New("accepts connections, and does not answer as a plugin does") // if gRPC then closes it
	errSilent    = errors.New("accepts connections, and answers nothing")
	errBroken    = errors.New("accepts connections, and closes them before it answers")
)

// cgroupOf returns the content of /proc/PID/cgroup for the process at the other end of nc. It is
// empty if that cannot be read.
func cgroupOf(nc net.Conn) string {
	p, err := host.Of(nc)
	if err != nil {
		return ""
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.PID))
	if err != nil {
		return ""
	}
	return string(text)
}

// ask calls a method of the plugin and returns its answer. If there is no connection it tries to
// connect, even if that has just failed, so that it asks a plugin that has come back.
func (c *connection) ask(ctx context.Context, method string, request []byte) ([]byte, error) {
	var opts []grpc.CallOption
	if c.cc.GetState() != connectivity.Ready {
		if err := c.knock(ctx); err != nil {
			return nil, err
		}
		opts = append(opts, grpc.WaitForReady(true))
	}
	var answer codec.Frame
	defer answer.Free()
	began := time.Now()
	err := c.calls.Invoke(ctx, method, codec.NewFrame(request), &answer, opts...)
	c.ended(began, err)
	if err != nil {
		return nil, err
	}
	return append([]byte{}, answer.Bytes()...), nil
}

// knock tries to connect to the socket, which succeeds or fails at once. Without it, a call would
// wait for the end of the pause between gRPC's attempts to connect.
func (c *connection) knock(ctx context.Context) error {
	nc, err := c.open(ctx)
	if err != nil {
		c.cc.Connect()
		return status.Error(codes.Unavailable, err.Error())
	}
	_ = nc.Close() // nothing was sent
	c.cc.Connect()
	return nil
}

// failure returns why there is no connection.
func (c *connection) failure() error {
	if err := c.failed.Load(); err != nil {
		return *err
	}
	return nil // cannot happen: each attempt that fails is noted
}

// ended notes how a call ended that has been made. A plugin may hang although it is connected.
func (c *connection) ended(began time.Time, err error) {
	code := status.Code(err)
	if code == codes.Unavailable || code == codes.Canceled {
		return // this says nothing about the plugin
	}
	c.become(func() (string, error) {
		if code != codes.DeadlineExceeded {
			c.waited = 0
			if silent := new(transport.SilentError); errors.As(c.why, &silent) {
				return StateReady, nil
			}
			return c.now, c.why
		}
		now := time.Now()
		if c.until.After(began) { // calls at the same time wait once
			began = c.until
		}
		c.waited, c.until = c.waited+now.Sub(began), now
		if c.now == StateReady && c.waited >= c.hangs {
			return StateDown, &transport.SilentError{Lasted: c.waited.Round(time.Second)}
		}
		return c.now, c.why
	})
}

// become sets the state that decide returns, and the reason. decide is called with c.mu held.
func (c *connection) become(decide func() (state string, why error)) {
	c.mu.Lock()
	was, why := c.now, c.why
	c.now, c.why = decide()
	changed := c.now != was || (c.why != nil || why != nil) && fmt.Sprint(c.why) != fmt.Sprint(why)
	c.mu.Unlock()
	if changed {
		c.changed()
	}
}

// state returns whether the plugin can be asked: StateReady, StateDown or StateConnecting. The error says why it is down.
func (c *connection) state() (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now, c.why
}

// use keeps the connection open until release is called. It reports false if the connection is
// already closed.
func (c *connection) use() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.retired && c.users == 0 {
		return false
	}
	c.users++
	return true
}

func (c *connection) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.users--; c.users == 0 && c.retired {
		_ = c.cc.Close() // its error concerns no call
	}
}

// retire closes the connection when the last call on it has ended.
func (c *connection) retire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.retired && c.users == 0 {
		_ = c.cc.Close() // its error concerns no call
	}
	c.retired = true
}
