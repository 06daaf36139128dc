package telemetry

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/criproxy/criproxy/internal/observe/capture"
)

// pollInterval is how often the recorder records a call that criproxy makes itself, for each method
// and backend. criproxy makes such calls every second; all of them together would soon push the
// calls of clients out of memory.
const pollInterval = time.Minute

// polls decides which calls of criproxy itself are recorded. The zero value is ready to use. It is
// safe for concurrent use.
type polls struct {
	mu   sync.Mutex
	last map[[2]string]time.Time // :: backend, method → when a call was last recorded
}

// due reports whether to record a call from its beginning.
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

// pollLeg is a call of criproxy itself that is recorded only if it fails.
type pollLeg struct {
	quietLeg
	ctx context.Context
	rec *capture.Recorder
	of  capture.LegInfo
}

// End records the call if it has failed. A canceled call does not count as failed.
func (l *pollLeg) End(err error, trailer metadata.MD) {
	if code := codeOf(err); code == codes.OK || code == codes.Canceled {
		return
	}
	_, leg := l.rec.Begin(l.ctx, l.of)
	leg.End(err, trailer)
}
