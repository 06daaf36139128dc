package calls

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"
)

// Stats counts calls by method. The zero Stats is ready for use.
type Stats struct{ methods map[string]*MethodStats }

// MethodStats are the statistics of one method.
type MethodStats struct {
	Method   string        `json:"method"`
	Count    int           `json:"count"`
	Errors   int           `json:"errors"`
	P50      time.Duration `json:"p50_ns"`
	P99      time.Duration `json:"p99_ns"`
	Requests int           `json:"request_bytes"`
	Replies  int           `json:"reply_bytes"`

	took []time.Duration
}

// Add counts a call that has ended.
func (s *Stats) Add(c *Call) {
	if s.methods == nil {
		s.methods = map[string]*MethodStats{}
	}
	m := s.methods[c.Method]
	if m == nil {
		m = &MethodStats{Method: c.Method}
		s.methods[c.Method] = m
	}
	m.Count++
	if c.Failed() {
		m.Errors++
	}
	m.took = append(m.took, c.Took)
	l := c.Front()
	m.Requests += l.Requests.Bytes
	m.Replies += l.Replies.Bytes
}

// Methods returns the statistics of all methods, sorted by name.
func (s *Stats) Methods() []MethodStats {
	all := []MethodStats{}
	for _, name := range slices.Sorted(maps.Keys(s.methods)) {
		m := *s.methods[name]
		slices.Sort(m.took)
		m.P50, m.P99 = quantile(m.took, 50), quantile(m.took, 99)
		all = append(all, m)
	}
	return all
}

// quantile returns a percentile of sorted values, by nearest rank.
func quantile(sorted []time.Duration, percent int) time.Duration {
	return sorted[max((len(sorted)*percent+99)/100-1, 0)]
}

// Print prints the statistics as a table.
func (s *Stats) Print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "COUNT\tERRORS\tP50\tP99\tREQUESTS\tREPLIES\t  METHOD\n")
	for _, m := range s.Methods() {
		fmt.Fprintf(w, "%d\t%d\t%s\t%s\t%s\t%s\t  %s\n", m.Count, m.Errors, took(m.P50), took(m.P99), size(m.Requests), size(m.Replies), Sanitize(m.Method))
	}
	return w.Flush()
}

// size formats a number of bytes.
func size(n int) string {
	switch {
	case n < 10_000:
		return fmt.Sprintf("%d B", n)
	case n < 10_000_000:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	}
	return fmt.Sprintf("%.1f MB", float64(n)/1e6)
}
