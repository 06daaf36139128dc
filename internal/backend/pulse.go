package backend

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// pulse measures for how long a backend has left all calls unanswered. It counts the calls under way, too: a backend that
// nobody has called is not silent. It is safe for concurrent use, except that only one goroutine may call beat.
type pulse struct {
	underWay atomic.Int64  // calls
	answers  atomic.Uint64 // so far, of any kind that only the backend can have given

	// Only beat uses these.
	seen   uint64        // answers, at the latest beat
	at     time.Time     // of the latest beat
	silent time.Duration // until then
}

// count calls f, which makes a call, and counts its answer.
func (p *pulse) count(ctx context.Context, f func(context.Context) error) error {
	p.underWay.Add(1)
	defer p.underWay.Add(-1) // also if f panics
	err := f(ctx)
	// If criproxy or the client ended the call, the backend has answered nothing. ResourceExhausted may
	// come from criproxy's own limits.
	if err == nil || ctx.Err() == nil && !unreachable(err) && status.Code(err) != codes.ResourceExhausted {
		p.answers.Add(1)
	}
	return err
}

// beat returns for how long calls have been under way without any answer. The time since the
// previous beat counts for at most bound: if it was longer, this process itself stood still.
func (p *pulse) beat(bound time.Duration) time.Duration {
	now, answers := time.Now(), p.answers.Load()
	if answers != p.seen || p.underWay.Load() == 0 || p.at.IsZero() {
		p.silent = 0
	} else {
		p.silent += min(now.Sub(p.at), bound)
	}
	p.seen, p.at = answers, now
	return p.silent
}
