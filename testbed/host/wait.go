package host

import (
	"context"
	"fmt"
	"time"
)

// Bounded returns ctx, with a deadline a minute from now if it has none.
func Bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, bounded := ctx.Deadline(); bounded {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, time.Minute)
}

// Await calls try every few milliseconds until it succeeds. If ctx ends first, the error names what it waited for, and
// holds the error of the last try.
func Await(ctx context.Context, what string, try func() error) error {
	var last error
	if err := Poll(ctx, what, func() bool { last = try(); return last == nil }); err != nil {
		return fmt.Errorf("%w (last: %w)", err, last)
	}
	return nil
}

// Poll calls done until it returns true: after a millisecond at first, later every 100 ms.
func Poll(ctx context.Context, what string, done func() bool) error {
	for pause := time.Millisecond; !done(); pause = min(2*pause, 100*time.Millisecond) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("testbed: waiting for %s: %w", what, ctx.Err())
		case <-time.After(pause):
		}
	}
	return nil
}
