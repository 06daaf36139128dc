package server

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/base/recovery"
	"github.com/criproxy/criproxy/internal/drift"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/telemetry"
	"github.com/criproxy/criproxy/internal/plugins"
)

// gauges are the metrics whose values are read when a scraper asks for them, from whoever has them. They keep no value, and do not
// change: several scrapers may ask at once.
type gauges struct {
	proxy *Proxy
	wrong *telemetry.Wrong            // may be nil
	descs map[string]*prometheus.Desc // :: name
}

// emit gives a scraper the value of a metric.
type emit func(name string, value float64, labels ...string)

// described lists the metrics of gauges: name, help, labels.
var described = []struct {
	name, help string
	labels     []string
}{
	{"criproxy_ready", "1 if the primary is up, so that calls are answered.", nil},
	{"criproxy_backend_up", "1 if a backend is up or slow, 0 if it is gone.", []string{"backend"}},
	{"criproxy_backend_slow", "1 if a backend is slow: the cache answers calls that it does not answer in time.", []string{"backend"}},
	{"criproxy_backend_since_timestamp_seconds", "Since when a backend is up, slow or gone.", []string{"backend"}},
	{"criproxy_backend_last_known_age_seconds", "Age of a backend's items in lists: 0 while it is up.", []string{"backend"}},
	{"criproxy_backend_remembered_answers_total", "Answers from the cache in place of a backend that is slow or gone.", []string{"backend", "method"}},
	{"criproxy_backend_items", "Known items of a backend, by kind: sandbox (pods), container.", []string{"backend", "kind"}},
	{"criproxy_message_memory_bytes", "Memory that messages of calls under way take or have reserved.", nil},
	{"criproxy_message_memory_limit_bytes", "Memory that messages of calls under way may take.", nil},
	{"criproxy_overload_calls_total", "Calls that a socket refused because it had too many, or no memory for their messages.", nil},
	{"criproxy_panics_total", "Panics that did not end the process; each is in the log.", nil},
	{"criproxy_listener_up", "1 if clients can connect to a socket; 0 if its file is gone and cannot be restored.", []string{"listener"}},
	{"criproxy_listener_lost_total", "How often a socket's file was found to be gone.", []string{"listener"}},
	{"criproxy_listener_connections", "Connections of a listener.", []string{"listener"}},
	{"criproxy_listener_connections_limit", "Connections that a listener may have before idle ones end: its share of the file descriptors.", []string{"listener"}},
	{"criproxy_listener_ended_connections_total", "Connections that ended or were refused because a listener had its share of the file descriptors.", []string{"listener"}},
	{"criproxy_refused_calls_total", "Calls that the access list of a listener refused.", []string{"listener"}},
	{"criproxy_config_last_reload_successful", "1 if the configuration of the file is in use; 0 if the file has mistakes.", nil},
	{"criproxy_config_last_reload_success_timestamp_seconds", "When the configuration in use was loaded.", nil},
	{"criproxy_config_reloads_total", "Reloads of the configuration, by result: success or failure.", []string{"result"}},
	{"criproxy_config_waiting_changes", "Changes of the configuration that wait for a restart.", nil},
	{"criproxy_capture_events_total", "Events that were recorded.", nil},
	{"criproxy_capture_missed_events_total", "Events that a reader of the recorder (file, log or tail) was too slow to read.", nil},
	{"criproxy_capture_up", "1 if the file of -capture is written; 0 while that fails.", nil},
	{"criproxy_capture_failures_total", "How often writing to the file of -capture began to fail.", nil},
	{"criproxy_findings", "What criproxy why finds in the calls of the last ten minutes, and is not over.", []string{"rule", "level"}},
	{"criproxy_export_up", "1 if the store of export takes records; 0 while it cannot be reached.", nil},
	{"criproxy_export_queued_records", "Records that wait until the store takes them.", nil},
	{"criproxy_export_sent_records_total", "Records that the store of export has taken.", nil},
	{"criproxy_export_lost_records_total", "Records that no store gets, by why: full, refused or stopped.", []string{"why"}},
	{"criproxy_drift_total", "Examined messages with something that the profile does not know, by kind: id, method or field.", []string{"kind", "where"}},
	{"criproxy_hook_plugin_up", "1 if a plugin is ready.", []string{"plugin"}},
	{"criproxy_hook_calls_total", "Calls of a plugin.", []string{"plugin", "point"}},
	{"criproxy_hook_failures_total", "Calls of a plugin without a usable answer.", []string{"plugin", "point"}},
	{"criproxy_hook_timeouts_total", "Calls of a plugin without an answer in time.", []string{"plugin", "point"}},
	{"criproxy_hook_refusals_total", "Calls of clients that were refused because of a plugin.", []string{"plugin", "point"}},
	{"criproxy_hook_changes_total", "Fields that a plugin changed.", []string{"plugin", "point"}},
	{"criproxy_hook_latency_seconds", "How long a plugin took in its latest 256 calls.", []string{"plugin", "point", "quantile"}},
	{"criproxy_hook_conflicts_total", "Fields that two plugins changed in one call.", nil},
}

// NewGauges returns the metrics of a proxy. wrong may be nil.
func NewGauges(p *Proxy, wrong *telemetry.Wrong) *gauges {
	g := &gauges{proxy: p, wrong: wrong, descs: map[string]*prometheus.Desc{}}
	for _, d := range described {
		g.descs[d.name] = prometheus.NewDesc(d.name, d.help, d.labels, nil)
	}
	return g
}

// Describe implements [prometheus.Collector].
func (g *gauges) Describe(to chan<- *prometheus.Desc) {
	for _, d := range g.descs {
		to <- d
	}
}

// emit returns what gives to values of one type.
func (g *gauges) emit(to chan<- prometheus.Metric, kind prometheus.ValueType) emit {
	return func(name string, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(g.descs[name], kind, value, labelValues(labels)...)
	}
}

// Collect implements [prometheus.Collector].
func (g *gauges) Collect(to chan<- prometheus.Metric) {
	p, gauge, counter := g.proxy, g.emit(to, prometheus.GaugeValue), g.emit(to, prometheus.CounterValue)
	gauge("criproxy_ready", one(p.Health().Ready))
	for _, b := range p.backends() {
		name := b.String()
		state, since, _ := b.state()
		gauge("criproxy_backend_up", one(admin.TakesCalls(state)), name)
		gauge("criproxy_backend_slow", one(state == backend.Slow.String()), name)
		gauge("criproxy_backend_since_timestamp_seconds", float64(since.UnixNano())/1e9, name)
		if b.cached {
			gauge("criproxy_backend_last_known_age_seconds", b.backend.Age().Seconds(), name)
			for kind, n := range b.backend.Items() {
				gauge("criproxy_backend_items", float64(n), name, kind)
			}
		}
		for method, n := range p.answers.of(name) {
			counter("criproxy_backend_remembered_answers_total", float64(n), name, method)
		}
	}
	taken, total, refused := p.memory.Usage()
	gauge("criproxy_message_memory_bytes", float64(taken))
	gauge("criproxy_message_memory_limit_bytes", float64(total))
	counter("criproxy_overload_calls_total", float64(refused))
	counter("criproxy_panics_total", float64(recovery.Count()))
	clients := p.clients()
	for _, s := range p.sockets() {
		lost, err := s.FileState()
		gauge("criproxy_listener_up", one(err == nil), s.Path)
		counter("criproxy_listener_lost_total", float64(lost), s.Path)
		connections := p.connectionsOf(s, clients[s])
		gauge("criproxy_listener_connections", float64(connections.Now), s.Path)
		gauge("criproxy_listener_connections_limit", float64(connections.Most), s.Path)
		counter("criproxy_listener_ended_connections_total", float64(connections.Ended), s.Path)
		counter("criproxy_refused_calls_total", float64(s.Refused.Load()), s.Path)
	}
	c := p.config.Load()
	gauge("criproxy_config_last_reload_successful", one(c.Error == ""))
	gauge("criproxy_config_last_reload_success_timestamp_seconds", float64(c.Loaded.UnixNano())/1e9)
	counter("criproxy_config_reloads_total", float64(c.Reloads), "success")
	counter("criproxy_config_reloads_total", float64(c.Failures), "failure")
	gauge("criproxy_config_waiting_changes", float64(len(c.NeedsRestart)))
	if r := p.record.State(); r != nil {
		counter("criproxy_capture_events_total", float64(r.Recorded))
		counter("criproxy_capture_missed_events_total", float64(r.Missed))
		if r.File {
			gauge("criproxy_capture_up", one(!r.Failing))
			counter("criproxy_capture_failures_total", float64(r.Failures))
		}
	}
	if g.wrong != nil {
		for of, n := range g.wrong.Count() {
			gauge("criproxy_findings", float64(n), of[0], of[1])
		}
	}
	if x := p.export.State(); x != nil {
		gauge("criproxy_export_up", one(x.Failing.IsZero()))
		gauge("criproxy_export_queued_records", float64(x.Queued))
		counter("criproxy_export_sent_records_total", float64(x.Sent))
		for _, why := range telemetry.WhyLost {
			counter("criproxy_export_lost_records_total", float64(x.Lost[why]), why)
		}
	}
	collectDrift(p.findings(), counter)
	if all := p.plugins(); all != nil {
		collectPlugins(all, gauge, counter)
	}
}

// collectDrift counts findings by their labels, which are names of the schema. Whoever sends a message chooses the names of
// methods and the numbers of fields that the schema does not have: such methods have one label together, and such fields
// that of their message. criproxy check -drift shows the names and numbers.
func collectDrift(findings []drift.Finding, counter emit) {
	count := map[[2]string]uint64{} // :: kind, where
	for _, f := range findings {
		where := f.Where
		switch f.Kind {
		case drift.Method:
			where = telemetry.Other
		case drift.Field:
			where, _, _ = strings.Cut(where, " ") // the name of the message
		}
		count[[2]string{f.Kind, where}] += f.Count
	}
	for labels, n := range count {
		counter("criproxy_drift_total", float64(n), labels[:]...)
	}
}

// labelValues makes values of labels valid, in place. A name of a file, for example that of a plugin, need not be UTF-8,
// and one label that is not makes Prometheus' library refuse all metrics. Different names stay different.
func labelValues(values []string) []string {
	for i, v := range values {
		if !utf8.ValidString(v) {
			values[i] = strings.Trim(strconv.Quote(v), `"`)
		}
	}
	return values
}

func collectPlugins(s *plugins.State, gauge, counter emit) {
	counter("criproxy_hook_conflicts_total", float64(s.Conflicts))
	for _, p := range s.Plugins {
		gauge("criproxy_hook_plugin_up", one(p.State == plugins.StateReady), p.Name)
		for _, point := range p.Points {
			counter("criproxy_hook_calls_total", float64(point.Calls), p.Name, point.Name)
			counter("criproxy_hook_failures_total", float64(point.Failed), p.Name, point.Name)
			counter("criproxy_hook_timeouts_total", float64(point.TimedOut), p.Name, point.Name)
			counter("criproxy_hook_refusals_total", float64(point.Refused), p.Name, point.Name)
			counter("criproxy_hook_changes_total", float64(point.Changes), p.Name, point.Name)
			gauge("criproxy_hook_latency_seconds", point.Latency.Median.Seconds(), p.Name, point.Name, "0.5")
			gauge("criproxy_hook_latency_seconds", point.Latency.P99.Seconds(), p.Name, point.Name, "0.99")
		}
	}
}

func one(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
