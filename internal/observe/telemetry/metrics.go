package telemetry

import (
	"context"
	"maps"
	"path"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/config"
)

// Other is the label of methods that the schema does not have, and of codes that gRPC does not have.
// Clients and runtimes choose these, so their number is not bounded.
const Other = "other"

// callBuckets range from a list of a small node to the pull of a large image, in seconds.
var callBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}

// Metrics count calls on both legs. docs/metrics.md describes each metric. Their names are stable. The proxy owns them for as
// long as the process lives, so a counter never goes back; they are safe for concurrent use, and a call takes no lock once it has
// its series.
type Metrics struct {
	Registry *prometheus.Registry
	client   legMetrics // label method, and code
	backend  legMetrics // label backend before these

	known atomic.Pointer[codec.Schema] // its methods have labels of their own

	mu     sync.Mutex // held to replace series
	series atomic.Pointer[map[seriesKey]*series]
}

// legMetrics are the five metrics that both legs have.
type legMetrics struct {
	calls    *prometheus.CounterVec
	took     *prometheus.HistogramVec
	inFlight *prometheus.GaugeVec
	requests *prometheus.CounterVec
	replies  *prometheus.CounterVec
}

// NewMetrics returns metrics in a registry of their own, which also has those of Go and of the process. Before [Metrics.Know] all
// methods count as "other".
func NewMetrics() *Metrics {
	m := &Metrics{Registry: prometheus.NewRegistry()}
	m.series.Store(&map[seriesKey]*series{})
	in := promauto.With(m.Registry)
	m.client = newLegMetrics(in, "criproxy_", "of clients", "method")
	m.backend = newLegMetrics(in, "criproxy_backend_", "to backends", "backend", "method")
	in.NewGauge(prometheus.GaugeOpts{
		Name: "criproxy_build_info", Help: "1, with the version of criproxy and of Go.",
		ConstLabels: prometheus.Labels{"version": config.Version, "goversion": runtime.Version()},
	}).Set(1)
	m.Registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// newLegMetrics makes the metrics of a leg in a registry.
func newLegMetrics(in promauto.Factory, prefix, of string, labels ...string) legMetrics {
	return legMetrics{
		calls: in.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "calls_total", Help: "Calls " + of + " that have ended, by gRPC code.",
		}, append(labels[:len(labels):len(labels)], "code")),
		took: in.NewHistogramVec(prometheus.HistogramOpts{
			Name: prefix + "call_duration_seconds", Help: "How long calls " + of + " took. Endless streams do not count.", Buckets: callBuckets,
		}, labels),
		inFlight: in.NewGaugeVec(prometheus.GaugeOpts{
			Name: prefix + "calls_in_flight", Help: "Calls " + of + " under way.",
		}, labels),
		requests: in.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "request_bytes_total", Help: "Bytes of the messages of calls " + of + ", towards the runtime.",
		}, labels),
		replies: in.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "reply_bytes_total", Help: "Bytes of the messages of calls " + of + ", towards the client.",
		}, labels),
	}
}

// seriesKey identifies the metrics of one method on one leg.
type seriesKey struct {
	client          bool
	backend, method string
}

// series are the metrics of one method on one leg, looked up once.
type series struct {
	calls    *prometheus.CounterVec    // with all labels but the code
	ok       func() prometheus.Counter // the counter for OK, made at the first call with that code
	took     prometheus.Observer       // nil for endless streams
	inFlight prometheus.Gauge
	requests prometheus.Counter
	replies  prometheus.Counter
}

// find returns the series of a method, which it makes at the first call. Each call reads the map without a lock: it is never changed in
// place, but replaced by a copy with one more series. They stay for the life of the process, so a key must not have what clients choose.
func (m *Metrics) find(key seriesKey, endless bool) *series {
	if s := (*m.series.Load())[key]; s != nil {
		return s
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	all := *m.series.Load()
	if s := all[key]; s != nil {
		return s
	}
	of, labels := &m.client, prometheus.Labels{"method": key.method}
	if !key.client {
		of = &m.backend
		labels["backend"] = key.backend
	}
	s := &series{
		calls:    of.calls.MustCurryWith(labels),
		inFlight: of.inFlight.With(labels),
		requests: of.requests.With(labels),
		replies:  of.replies.With(labels),
	}
	if !endless {
		s.took = of.took.With(labels)
	}
	s.ok = sync.OnceValue(func() prometheus.Counter { return s.calls.WithLabelValues(codes.OK.String()) })
	all = maps.Clone(all)
	all[key] = s
	m.series.Store(&all)
	return s
}

// Know gives the methods of an API labels of their own. All others count as "other".
func (m *Metrics) Know(d director.Config) {
	schema := d.Schema
	if d.Profile != nil {
		schema = d.Profile.AllVersions(schema)
	}
	m.known.Store(schema)
}

// methodLabel returns the label of a method.
func (m *Metrics) methodLabel(method string) string {
	if m.known.Load().Method(method) == nil {
		return Other
	}
	return path.Base(method)
}

// codeLabel returns the label of an error's code.
func codeLabel(err error) string {
	if code := codeOf(err); code <= codes.Unauthenticated {
		return code.String()
	}
	return Other
}

// Begin implements [director.Tracer].
func (m *Metrics) Begin(ctx context.Context, info director.LegInfo) (context.Context, director.Leg) {
	key := seriesKey{client: info.Client, method: m.methodLabel(info.Method)}
	if !info.Client {
		key.backend = director.Backend{Name: info.Backend}.String()
	}
	s := m.find(key, info.Endless)
	s.inFlight.Inc()
	return ctx, &countedLeg{series: s, began: time.Now()}
}

// countedLeg is a leg under way.
type countedLeg struct {
	*series
	began time.Time
	ended atomic.Bool
}

func (l *countedLeg) Request(f *codec.Frame) { l.requests.Add(float64(f.Len())) }
func (l *countedLeg) Reply(f *codec.Frame)   { l.replies.Add(float64(f.Len())) }
func (*countedLeg) Header(metadata.MD)       {}

func (l *countedLeg) End(err error, _ metadata.MD) {
	if l.ended.Swap(true) {
		return
	}
	l.inFlight.Dec()
	if err == nil {
		l.ok().Inc()
	} else {
		l.calls.WithLabelValues(codeLabel(err)).Inc()
	}
	if l.took != nil {
		l.took.Observe(time.Since(l.began).Seconds())
	}
}
