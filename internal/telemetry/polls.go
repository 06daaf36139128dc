package telemetry

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/criproxy/criproxy/internal/capture"
)

// pollInterval is how often a call that criproxy makes itself is recorded, of each method of each
// backend. It asks every second, for as long as it runs: what clients do would not be in memory for
// long beside all of that.
const pollInterval = time.Minute

// polls decides which of our own calls are recorded. The zero value is ready. It is safe for
// concurrent use.
type polls struct {
	mu   sync.Mutex
	last map[[2]string]time.Time // :: backend, method → when one was recorded
}

// due reports whether a call is recorded from its beginning.
func (p *polls) due(backend, method string, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := [2]string{backend, method}
	if last, ok := p.last[key]; ok && now.Sub(last) < pollInterval {
		return false
	}
	if p.last == nil {
		p.last = map[[2]string]time.Time{}
	}
	p.last[key] = now
	return true
}

// pollLeg is a call of our own that is recorded only if it fails.
type pollLeg struct {
	quietLeg
	ctx context.Context
	rec *capture.Recorder
	of  capture.LegInfo
}

// End records the call if it has failed, and not because it was given up.
func (l *pollLeg) End(err error, trailer metadata.MD) {
	if code := codeOf(err); code == codes.OK || code == codes.Canceled {
		return
	}
	_, leg := l.rec.Begin(l.ctx, l.of)
	leg.End(err, trailer)
}
