package telemetry

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/director/dial"
)

// maxLosses is how many lost fields the log names, each once.
const maxLosses = 1000

// Losses count the fields of metadata that could not be passed on, and log each once for its backend, method and name.
type Losses struct {
	count *prometheus.CounterVec

	mu     sync.Mutex
	logged map[lossKey]struct{} // at most maxLosses
}

type lossKey struct{ backend, method, field, why string }

// NewLosses returns Losses that count in r.
func NewLosses(r *prometheus.Registry) *Losses {
	l := &Losses{logged: map[lossKey]struct{}{}, count: promauto.With(r).NewCounterVec(prometheus.CounterOpts{
		Name: "criproxy_metadata_losses_total", Help: "Fields of metadata that could not be passed on, by direction (request, reply) and reason (bytes, size).",
	}, []string{"direction", "reason"})}
	for _, direction := range []string{"request", "reply"} {
		for _, why := range []string{dial.LossBytes, dial.LossSize} {
			l.count.WithLabelValues(direction, why)
		}
	}
	return l
}

// Of returns what takes note of a field on the way to or from a backend. It does not wait. The backend of a field that
// the client's own limit has stopped is "".
func (l *Losses) Of(backend string) func(dial.Loss) {
	return func(lost dial.Loss) {
		direction := "request"
		if lost.Reply {
			direction = "reply"
		}
		l.count.WithLabelValues(direction, lost.Why).Inc()
		key := lossKey{backend, lost.Method, lost.Field, lost.Why}
		l.mu.Lock()
		defer l.mu.Unlock()
		if _, again := l.logged[key]; again || len(l.logged) >= maxLosses || len(lost.Method)+len(lost.Field) > maxLossNames {
			return
		}
		l.logged[key] = struct{}{}
		go klog.InfoS("A field of metadata cannot be passed on; the call goes on without it", "field", lost.Field, "of", direction, "method", lost.Method, "backend", backend, "reason", lost.Why)
	}
}

// maxLossNames is the length of names up to which a lost field is logged. Whoever sends it chooses them.
const maxLossNames = 256
