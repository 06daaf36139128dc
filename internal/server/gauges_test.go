package server

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/drift"
	"github.com/criproxy/criproxy/internal/plugins"
)

// found are gauges of what calls had, and of plugins.
type found struct {
	*gauges
	drift   []drift.Finding
	plugins plugins.State
}

func (f *found) Collect(to chan<- prometheus.Metric) {
	gauge, counter := f.emit(to, prometheus.GaugeValue), f.emit(to, prometheus.CounterValue)
	collectDrift(f.drift, counter)
	collectPlugins(&f.plugins, gauge, counter)
}

// One call of a method whose name was not UTF-8 made /metrics fail until the process ended, and each invented name made a
// series. See issue 40.
func TestNobodyOutsideNamesASeries(t *testing.T) {
	t.Parallel()
	s := &found{gauges: NewGauges(nil, nil)}
	for i := range 150 {
		s.drift = append(s.drift, drift.Finding{Kind: drift.Field, Where: fmt.Sprintf("Container field %d", 100+i), Count: 1})
	}
	for i := range 150 {
		s.drift = append(s.drift, drift.Finding{Kind: drift.Method, Where: fmt.Sprintf("/runtime.v1.RuntimeService/V\xe4%d", i), Count: 2})
	}
	s.plugins = plugins.State{Plugins: []plugins.PluginState{{Name: "\xe4.json"}, {Name: "\xf6.json"}, {Name: `good "one".json`}}}
	r := prometheus.NewRegistry()
	r.MustRegister(s)
	families, err := r.Gather()
	require.NoError(t, err)
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			key := f.GetName()
			for _, l := range m.GetLabel() {
				key += " " + l.GetValue()
			}
			got[key] = m.GetCounter().GetValue()
		}
	}
	assert.InDelta(t, 300, got["criproxy_drift_total method other"], 0)
	assert.InDelta(t, 150, got["criproxy_drift_total field Container"], 0)
	assert.Contains(t, got, `criproxy_hook_plugin_up \xe4.json`)
	assert.Contains(t, got, `criproxy_hook_plugin_up \xf6.json`)
	assert.Contains(t, got, `criproxy_hook_plugin_up good "one".json`)
	assert.Less(t, len(got), 30)
}
