package page

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// A Scrape has all metrics at one time.
type Scrape struct {
	At     time.Time
	series map[string][]series // :: metric, with _bucket for those of a histogram
	values map[string]float64  // :: key of a series
}

type series struct {
	key    string // the metric and its labels
	labels map[string]string
	le     float64 // the upper bound of a bucket
	value  float64
}

// Read reads metrics in Prometheus's text format.
func Read(r io.Reader, at time.Time) (*Scrape, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(r)
	if err != nil {
		return nil, fmt.Errorf("reading metrics: %w", err)
	}
	s := &Scrape{At: at, series: map[string][]series{}, values: map[string]float64{}}
	for name, family := range families {
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			switch family.GetType() {
			case dto.MetricType_COUNTER:
				s.add(series{labels: labels, value: m.GetCounter().GetValue()}, name)
			case dto.MetricType_GAUGE:
				s.add(series{labels: labels, value: m.GetGauge().GetValue()}, name)
			case dto.MetricType_HISTOGRAM:
				for _, b := range m.GetHistogram().GetBucket() {
					s.add(series{labels: labels, le: b.GetUpperBound(), value: float64(b.GetCumulativeCount())}, name+"_bucket")
				}
			}
		}
	}
	return s, nil
}

func (s *Scrape) add(one series, metric string) {
	pairs := []string{metric, fmt.Sprint(one.le)}
	for name, value := range one.labels {
		pairs = append(pairs, name+"="+value)
	}
	slices.Sort(pairs[2:])
	one.key = strings.Join(pairs, "\x00")
	s.series[metric] = append(s.series[metric], one)
	s.values[one.key] = one.value
}

// Span is the time over which a [Meter] takes rates.
const Span = 30 * time.Second

// A Meter reads all panels from one scrape after another. The zero Meter is ready for use.
type Meter struct {
	scrapes []*Scrape // of one process: those within Span, and the one before
}

// Next returns the values of each panel at a scrape that is later than all before. Rates are over the latest Span, or as
// much of it as the Meter has seen of that process.
func (m *Meter) Next(now *Scrape) [][]Value {
	if n := len(m.scrapes); n > 0 && m.scrapes[n-1].began() != now.began() {
		m.scrapes = nil // counters of another process
	}
	for len(m.scrapes) > 1 && now.At.Sub(m.scrapes[1].At) >= Span {
		m.scrapes = m.scrapes[1:]
	}
	var before *Scrape
	if len(m.scrapes) > 0 {
		before = m.scrapes[0]
	}
	m.scrapes = append(m.scrapes, now)
	var all [][]Value
	for _, p := range Panels() {
		values := []Value{}
		for _, q := range p.Queries {
			for _, v := range q.eval(before, now) {
				if !math.IsNaN(v.Value) && !math.IsInf(v.Value, 0) { // JSON cannot represent these
					values = append(values, v)
				}
			}
		}
		all = append(all, values)
	}
	return all
}

// began returns the start time of the process, by which processes differ.
func (s *Scrape) began() float64 {
	for _, one := range s.series["process_start_time_seconds"] {
		return one.value
	}
	return 0
}
