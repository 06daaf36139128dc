package page

import (
	"cmp"
	"math"
	"slices"
	"strings"
)

// A Query selects some series of a metric.
type Query struct {
	Metric   string
	Plus     string // another metric with the same labels, which is added; empty if there is none
	Where    []Label
	Rate     bool     // how much a counter grows in a second
	By       []string // series that differ in other labels are added up. Nil adds up none
	Quantile float64  // the quantile of a histogram's latest observations; zero if the metric is not a histogram
	Legend   string   // the name of a series: {{label}} stands for the label's value. It has all labels of By
}

// A Label selects series by the value of a label.
type Label struct {
	Name  string
	Is    string
	IsNot []string // instead of Is
}

// A Value is the value of one series.
type Value struct {
	Series string
	Value  float64
}

func (l Label) matches(labels map[string]string) bool {
	if l.IsNot != nil {
		return !slices.Contains(l.IsNot, labels[l.Name])
	}
	return labels[l.Name] == l.Is
}

// eval returns what Prometheus would: the current values, and rates since before. A series that is new since before
// counts from 0, as all of criproxy's do. If before is nil there are no rates.
func (q Query) eval(before, now *Scrape) []Value {
	rate := q.Rate || q.Quantile > 0
	if rate && before == nil {
		return nil
	}
	metric := q.Metric
	if q.Quantile > 0 {
		metric += "_bucket"
	}
	sums := map[string]float64{}                // :: series → value
	buckets := map[string]map[float64]float64{} // :: series → upper bound → observations
	for _, s := range slices.Concat(now.series[metric], now.series[q.Plus]) {
		if slices.ContainsFunc(q.Where, func(l Label) bool { return !l.matches(s.labels) }) {
			continue
		}
		v, name := s.value, legend(q.Legend, s.labels)
		if rate {
			v = (v - before.values[s.key]) / now.At.Sub(before.At).Seconds()
		}
		if q.Quantile == 0 {
			sums[name] += v
			continue
		}
		if buckets[name] == nil {
			buckets[name] = map[float64]float64{}
		}
		buckets[name][s.le] += v
	}
	for name, counts := range buckets {
		if v := quantile(q.Quantile, counts); !math.IsNaN(v) {
			sums[name] = v
		}
	}
	var all []Value
	for name, v := range sums {
		all = append(all, Value{name, v})
	}
	slices.SortFunc(all, func(a, b Value) int { return cmp.Compare(a.Series, b.Series) })
	return all
}

// legend returns the name of a series. It leaves out labels that the series lacks, as a scrape of one process lacks its
// instance.
func legend(template string, labels map[string]string) string {
	var b strings.Builder
	for {
		text, rest, found := strings.Cut(template, "{{")
		b.WriteString(text)
		if !found {
			return strings.TrimSpace(b.String())
		}
		name, after, _ := strings.Cut(rest, "}}")
		b.WriteString(labels[name])
		template = after
	}
}

// quantile returns what Prometheus's histogram_quantile returns for cumulative buckets: it assumes that observations
// are spread evenly within a bucket. It returns NaN if there are none.
func quantile(q float64, counts map[float64]float64) float64 {
	var bounds []float64
	for le := range counts {
		bounds = append(bounds, le)
	}
	slices.Sort(bounds)
	if len(bounds) < 2 || counts[bounds[len(bounds)-1]] == 0 {
		return math.NaN()
	}
	rank := q * counts[bounds[len(bounds)-1]]
	i := slices.IndexFunc(bounds, func(le float64) bool { return counts[le] >= rank })
	switch {
	case i < 0 || i == len(bounds)-1: // beyond the last bound that is finite
		return bounds[len(bounds)-2]
	case i == 0:
		return bounds[0] * rank / counts[bounds[0]]
	}
	from, below := bounds[i-1], counts[bounds[i-1]]
	return from + (bounds[i]-from)*(rank-below)/(counts[bounds[i]]-below)
}
