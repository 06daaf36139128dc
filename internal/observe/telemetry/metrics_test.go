package telemetry

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/director"
)

// A runtime can end its calls with any number as the code. Each used to get a series of its own, which stayed.
func TestUnknownCodesShareOneLabel(t *testing.T) {
	m := NewMetrics()
	for code := codes.Code(0); code < 100; code++ {
		_, leg := m.Begin(t.Context(), director.LegInfo{Method: "/a.B/C"})
		leg.End(status.Error(code, "ended"), nil)
	}
	families, err := m.Registry.Gather()
	require.NoError(t, err)
	counts := map[string]float64{} // :: code
	for _, f := range families {
		if f.GetName() != "criproxy_backend_calls_total" {
			continue
		}
		for _, one := range f.GetMetric() {
			for _, l := range one.GetLabel() {
				if l.GetName() == "code" {
					counts[l.GetValue()] = one.GetCounter().GetValue()
				}
			}
		}
	}
	assert.Len(t, counts, 18, "17 that gRPC has, and other")
	assert.Equal(t, 83.0, counts["other"])
	assert.Equal(t, 1.0, counts["Unavailable"])
}
