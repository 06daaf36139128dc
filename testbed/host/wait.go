package host

import (
	"context"
	"fmt"
	"os/exec"
	"time"
)

// Bounded returns ctx, with a deadline a minute from now if it has none.
func Bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return bounded(ctx, time.Minute)
}

func bounded(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if _, bounded := ctx.Deadline(); bounded {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, limit)
}

// Command returns a command for the caller to wait for: it ends with ctx, a minute from now if ctx has no deadline.
// A daemon, which outlives the call, is not for Command.
func Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	return CommandWithin(ctx, time.Minute, name, args...)
}

// CommandWithin is Command with another limit, such as for builds.
func CommandWithin(ctx context.Context, limit time.Duration, name string, args ...string) *exec.Cmd {
	ctx, cancel := bounded(ctx, limit)
	context.AfterFunc(ctx, cancel)
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = time.Second // a grandchild may hold the output open
	return cmd
}

// Await calls try every few milliseconds until it succeeds. If ctx ends first, the error names what it waited for, and
// holds the error of the last try. Await waits for a minute if ctx has no deadline.
func Await(ctx context.Context, what string, try func() error) error {
	var last error
	if err := Poll(ctx, what, func() bool { last = try(); return last == nil }); err != nil {
		return fmt.Errorf("%w (last: %w)", err, last)
	}
	return nil
}

// Poll calls done until it returns true: after a millisecond at first, later every 100 ms. Poll waits for a
// minute if ctx has no deadline: a caller with the context of a test, which has none, cannot hang.
func Poll(ctx context.Context, what string, done func() bool) error {
	ctx, cancel := Bounded(ctx)
	defer cancel()
	for pause := time.Millisecond; !done(); pause = min(2*pause, 100*time.Millisecond) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("testbed: waiting for %s: %w", what, ctx.Err())
		case <-time.After(pause):
		}
	}
	return nil
}
