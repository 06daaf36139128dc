package director

import (
	"context"
	"errors"
	"io/fs"
	"syscall"
	"time"

	"google.golang.org/grpc/connectivity"

	"github.com/criproxy/criproxy/internal/address"
)

// lookEvery is how often a socket at which nobody listens is tried.
const lookEvery = 20 * time.Millisecond

// absent reports whether err says that nobody listens: there is no file, or the connection is
// refused. Any other failure is no evidence.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
}

// waitForChange waits until the state is another one than from. While nobody listens at the
// socket it sees to it that the connection is made as soon as somebody does, and not after
// the pause that has begun: until then all calls would fail.
func (c *Conn) waitForChange(ctx context.Context, from connectivity.State) bool {
	if e := c.dialError.Load(); from == connectivity.TransientFailure && e != nil && absent(*e) {
		looking, stop := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			if c.returns(looking) {
				c.cc.ResetConnectBackoff()
			}
		}()
		defer func() { stop(); <-done }()
	}
	return c.cc.WaitForStateChange(ctx, from)
}

// returns waits until somebody listens at the socket of the backend, and reports false if ctx
// ends before. It leaves addresses that are no file to the pauses.
func (c *Conn) returns(ctx context.Context) bool {
	network, err := address.Network(c.address)
	if err != nil || network != address.Unix || len(c.addresses) > 1 {
		return false
	}
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-look.C:
		}
		nc, err := address.Dial(ctx, c.address)
		if err == nil {
			_ = nc.Close() // nothing was sent
			return true
		}
		if !absent(err) {
			return false
		}
	}
}
