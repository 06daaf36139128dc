package plugins

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// stats counts the calls of one plugin, by point.
type stats struct {
	mu     sync.Mutex
	points map[string]*pointStats
}

type pointStats struct {
	PointCounters
	took [latencies]time.Duration // a ring of the latest latencies
}

// latencies is how many latencies a point keeps.
const latencies = 256

// PointCounters counts the calls of a plugin at one point. Its JSON is stable.
type PointCounters struct {
	Calls    int64 `json:"calls"`
	Failed   int64 `json:"failed"`   // there was no usable answer
	TimedOut int64 `json:"timedOut"` // of the failed: there was no answer in time
	Refused  int64 `json:"refused"`  // of the failed: the client's call was refused
	Changes  int64 `json:"changes"`  // changed fields

	// Changed counts the changes by field. All keys of a map count as one field.
	Changed map[string]int64 `json:"changed,omitempty"`

	LastError   string     `json:"lastError,omitempty"`
	LastErrorAt *time.Time `json:"lastErrorAt,omitempty"`
}

// Latency says how long a plugin took in its latest 256 calls. Its JSON is in
// nanoseconds, and stable.
type Latency struct {
	Median time.Duration `json:"medianNs"`
	P99    time.Duration `json:"p99Ns"`
	Max    time.Duration `json:"maxNs"`
}

// count counts one call of the plugin.
func (s *stats) count(e *Asked) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.points[e.Point]
	if p == nil {
		p = &pointStats{}
		s.points[e.Point] = p
	}
	p.took[p.Calls%latencies] = e.Took
	p.Calls++
	p.Changes += int64(len(e.Changes))
	for _, c := range e.Changes {
		field, _, _ := strings.Cut(c.Field, "[")
		if p.Changed == nil {
			p.Changed = map[string]int64{}
		}
		p.Changed[field]++
	}
	if e.Err == nil {
		return
	}
	now := time.Now()
	p.Failed++
	p.LastError, p.LastErrorAt = e.Err.Error(), &now
	if e.Refused {
		p.Refused++
	}
	var late *timeoutError
	if errors.As(e.Err, &late) {
		p.TimedOut++
	}
}

// of returns the counters of one point.
func (s *stats) of(point string) (PointCounters, Latency) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.points[point]
	if p == nil {
		return PointCounters{}, Latency{}
	}
	counters := p.PointCounters
	counters.Changed = maps.Clone(p.Changed)
	took := slices.Clone(p.took[:min(p.Calls, latencies)])
	slices.Sort(took)
	n := len(took)
	return counters, Latency{Median: took[n/2], P99: took[n-1-n/100], Max: took[n-1]}
}
