package lastknown

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// pulse tells a backend that is silent from one that has nothing to say: it counts the
// calls under way, and the answers. Its methods may be called at once, beat by one
// goroutine only.
type pulse struct {
	underWay atomic.Int64
	answers  atomic.Uint64

	seen   uint64 // answers, at the latest beat
	at     time.Time
	silent time.Duration
}

// of does a call.
func (p *pulse) of(ctx context.Context, f func(context.Context) error) error {
	p.underWay.Add(1)
	defer p.underWay.Add(-1)
	err := f(ctx)
	// A call that ended here says nothing of the backend, and ResourceExhausted may be ours.
	if err == nil || ctx.Err() == nil && !unreachable(err) && status.Code(err) != codes.ResourceExhausted {
		p.answers.Add(1)
	}
	return err
}

// beat returns for how long calls have been under way and nothing has come. A beat
// that comes late counts for at most most: it was this process that stood still.
func (p *pulse) beat(most time.Duration) time.Duration {
	now, answers := time.Now(), p.answers.Load()
	if answers != p.seen || p.underWay.Load() == 0 || p.at.IsZero() {
		p.silent = 0
	} else {
		p.silent += min(now.Sub(p.at), most)
	}
	p.seen, p.at = answers, now
	return p.silent
}
