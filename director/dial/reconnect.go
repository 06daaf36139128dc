package dial

import (
	"context"
	"errors"
	"io/fs"
	"syscall"
	"time"

	"google.golang.org/grpc/connectivity"

	"github.com/criproxy/criproxy/internal/transport"
)

// dialEvery is how often the Conn tries a socket at which no process listens.
const dialEvery = 20 * time.Millisecond

// absent reports whether err says that no process listens: there is no file, or the connection is
// refused. Any other failure proves nothing.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
}

// waitForChange waits until the state is no longer from, and reports false if ctx ends before. If no
// process listens at the socket, it connects as soon as one does instead of waiting for the end of
// the pause: until then all calls would fail.
func (c *Conn) waitForChange(ctx context.Context, from connectivity.State) bool {
	if e := c.dialError.Load(); from == connectivity.TransientFailure && e != nil && absent(*e) {
		waiting, stop := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			if c.awaitListener(waiting) {
				c.cc.ResetConnectBackoff()
			}
		}()
		defer func() { stop(); <-done }()
	}
	return c.cc.WaitForStateChange(ctx, from)
}

// awaitListener waits until a process listens at the socket of the backend, and reports false if ctx ends
// before. It reports false at once for an address that is not a file.
func (c *Conn) awaitListener(ctx context.Context) bool {
	network, err := transport.Network(c.address)
	if err != nil || network != transport.Unix || len(c.addresses) > 1 {
		return false
	}
	tick := time.NewTicker(dialEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
		nc, err := transport.Dial(ctx, c.address)
		if err == nil {
			_ = nc.Close() // nothing was sent
			return true
		}
		if !absent(err) {
			return false
		}
	}
}
