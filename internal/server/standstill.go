package server

import (
	"context"
	"fmt"
	"time"

	"github.com/criproxy/criproxy/internal/observe/capture"
)

// beat is how often criproxy reads the clock, and late is how much later that must be before it says that criproxy did not
// run: on a busy node, each goroutine waits now and then.
const (
	beat = 2 * time.Second
	late = 3 * time.Second
)

// watchItself records each time in which this process did not run, until ctx ends. In such a time, calls of clients are not
// recorded, and answers of backends wait: neither is their fault. now is monotonic, so a clock that is set is no such time.
func watchItself(ctx context.Context, beats <-chan time.Time, now func() time.Time, record func(capture.Change)) {
	before := now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-beats:
		}
		at := now()
		if gap := at.Sub(before); gap >= beat+late {
			record(capture.Change{Time: at, What: capture.StoodStill, Since: at.Add(-gap),
				Why: fmt.Sprintf("it did not run for %s: its process was stopped, or got no time of a processor", gap.Round(time.Second))})
		}
		before = at
	}
}
