package page

import (
	"flag"
	"math"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write packaging/monitoring/dashboard.json anew")

func TestTheDashboardForGrafanaHasThesePanels(t *testing.T) {
	const file = "../../../packaging/monitoring/dashboard.json"
	want, err := grafana()
	require.NoError(t, err)
	if *update {
		require.NoError(t, os.WriteFile(file, want, 0o644))
	}
	got, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, string(want), string(got), "go test ./internal/observe/page -update writes it anew")
}

func TestPanelsAreComplete(t *testing.T) {
	label := regexp.MustCompile(`{{(\w+)}}`)
	titles := map[string]bool{}
	for _, p := range Panels() {
		assert.False(t, titles[p.Title], "%s is there twice", p.Title)
		titles[p.Title] = true
		assert.NotEmpty(t, p.About, p.Title)
		assert.NotEmpty(t, p.Queries, p.Title)
		for _, q := range p.Queries {
			var shown []string
			for _, m := range label.FindAllStringSubmatch(q.Legend, -1) {
				shown = append(shown, m[1])
			}
			assert.Subset(t, shown, q.By, "%s: two series would have one name", p.Title)
		}
	}
}

func TestQueriesAreAskedInPromQL(t *testing.T) {
	for _, c := range []struct {
		query Query
		want  string
	}{
		{Query{Metric: "criproxy_ready"}, `criproxy_ready{instance=~"$instance"}`},
		{Query{Metric: "go_goroutines"}, `go_goroutines{instance=~"$instance",job=~"$job"}`},
		{Query{Metric: "criproxy_a", Where: []Label{{Name: "q", Is: "0.99"}}}, `criproxy_a{instance=~"$instance",q="0.99"}`},
		{Query{Metric: "criproxy_a", Plus: "criproxy_b"}, `criproxy_a{instance=~"$instance"} + criproxy_b{instance=~"$instance"}`},
		{Query{Metric: "criproxy_a", Rate: true, By: []string{}}, `sum(rate(criproxy_a{instance=~"$instance"}[$__rate_interval]))`},
		{Query{Metric: "criproxy_a", Where: failed, Rate: true, By: []string{"method", "code"}},
			`sum by (method, code) (rate(criproxy_a{instance=~"$instance",code!~"OK|Canceled"}[$__rate_interval]))`},
		{Query{Metric: "criproxy_a", Quantile: 0.99, By: []string{"method"}},
			`histogram_quantile(0.99, sum by (method, le) (rate(criproxy_a_bucket{instance=~"$instance"}[$__rate_interval])))`},
	} {
		assert.Equal(t, c.want, c.query.promQL())
	}
}

// scrape is what a process says that began at a time.
func scrape(t *testing.T, at int, began, metrics string) *Scrape {
	t.Helper()
	text := "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds " + began + "\n" + metrics
	s, err := Read(strings.NewReader(text), time.Unix(int64(at), 0))
	require.NoError(t, err)
	return s
}

func values(all []Value) map[string]float64 {
	m := map[string]float64{}
	for _, v := range all {
		m[v.Series] = v.Value
	}
	return m
}

const callsTotal = "# TYPE criproxy_calls_total counter\n"

func TestRatesAreSinceTheScrapeBefore(t *testing.T) {
	q := Query{Metric: "criproxy_calls_total", Where: failed, Rate: true, By: []string{"method"}, Legend: "{{instance}} of {{method}}"}
	before := scrape(t, 100, "1", callsTotal+`criproxy_calls_total{method="A",code="Internal"} 10
criproxy_calls_total{method="A",code="Unknown"} 1
criproxy_calls_total{method="A",code="OK"} 5
`)
	now := scrape(t, 110, "1", callsTotal+`criproxy_calls_total{method="A",code="Internal"} 20
criproxy_calls_total{method="A",code="Unknown"} 6
criproxy_calls_total{method="A",code="OK"} 500
criproxy_calls_total{method="B",code="Internal"} 2
`)
	assert.Equal(t, map[string]float64{"of A": 1.5, "of B": 0.2}, values(q.eval(before, now)))
	assert.Empty(t, q.eval(nil, now), "one scrape has no rate")
}

func TestQuantilesAreThoseOfPrometheus(t *testing.T) {
	inf := math.Inf(1)
	for _, c := range []struct {
		what   string
		q      float64
		counts map[float64]float64
		want   float64
	}{
		{"within a bucket", 0.5, map[float64]float64{1: 10, 2: 30, inf: 30}, 1.25},
		{"within the first", 0.5, map[float64]float64{1: 10, 2: 10, inf: 10}, 0.5},
		{"beyond the last", 0.99, map[float64]float64{1: 10, 2: 10, inf: 20}, 2},
	} {
		assert.InDelta(t, c.want, quantile(c.q, c.counts), 1e-9, c.what)
	}
	assert.True(t, math.IsNaN(quantile(0.5, map[float64]float64{1: 0, inf: 0})), "nothing was observed")
}

func TestHistogramsAreReadBySeries(t *testing.T) {
	q := Query{Metric: "criproxy_call_duration_seconds", Quantile: 0.5, By: []string{"method"}, Legend: "{{method}}"}
	const histogram = "# TYPE criproxy_call_duration_seconds histogram\n"
	before := scrape(t, 0, "1", histogram+`criproxy_call_duration_seconds_bucket{method="A",le="1"} 4
criproxy_call_duration_seconds_bucket{method="A",le="2"} 4
criproxy_call_duration_seconds_bucket{method="A",le="+Inf"} 4
criproxy_call_duration_seconds_sum{method="A"} 1
criproxy_call_duration_seconds_count{method="A"} 4
`)
	now := scrape(t, 10, "1", histogram+`criproxy_call_duration_seconds_bucket{method="A",le="1"} 4
criproxy_call_duration_seconds_bucket{method="A",le="2"} 8
criproxy_call_duration_seconds_bucket{method="A",le="+Inf"} 8
criproxy_call_duration_seconds_sum{method="A"} 7
criproxy_call_duration_seconds_count{method="A"} 8
`)
	assert.Equal(t, map[string]float64{"A": 1.5}, values(q.eval(before, now)))
}

// panel returns the values of the panel with a title.
func panel(t *testing.T, all [][]Value, title string) map[string]float64 {
	t.Helper()
	for i, p := range Panels() {
		if p.Title == title {
			return values(all[i])
		}
	}
	t.Fatal("there is no panel ", title)
	return nil
}

func TestAMeterForgetsAnotherProcess(t *testing.T) {
	count := func(n string) string { return callsTotal + `criproxy_calls_total{method="A",code="OK"} ` + n + "\n" }
	var m Meter
	assert.Empty(t, panel(t, m.Next(scrape(t, 0, "1", count("100"))), "Calls of clients"))
	assert.Equal(t, map[string]float64{"A": 10}, panel(t, m.Next(scrape(t, 10, "1", count("200"))), "Calls of clients"))
	after := m.Next(scrape(t, 20, "2", count("150")))
	assert.Empty(t, panel(t, after, "Calls of clients"), "a handover is no burst of callsTotal")
	assert.Equal(t, map[string]float64{"A": 5}, panel(t, m.Next(scrape(t, 30, "2", count("200"))), "Calls of clients"))
}

func TestRatesAreOfTheLatestHalfMinute(t *testing.T) {
	var m Meter
	var last [][]Value
	for i, n := range []string{"0", "1000", "1000", "1000", "1030"} {
		last = m.Next(scrape(t, 10*i, "1", callsTotal+`criproxy_calls_total{method="A",code="OK"} `+n+"\n"))
	}
	assert.Equal(t, map[string]float64{"A": 1}, panel(t, last, "Calls of clients"))
}

// The panel called a runtime up that was slow.
func TestThePanelOfRuntimesTellsSlowFromUp(t *testing.T) {
	gauge := func(name string, values ...string) string {
		s := "# TYPE " + name + " gauge\n"
		for i, v := range values {
			s += name + `{backend="` + string(rune('a'+i)) + `"} ` + v + "\n"
		}
		return s
	}
	var m Meter
	all := panel(t, m.Next(scrape(t, 0, "1", gauge("criproxy_backend_up", "0", "1", "1")+gauge("criproxy_backend_slow", "0", "0", "1"))), "Runtimes")
	words := Rows[0][1].Words
	assert.Equal(t, []string{"gone", "up", "slow"}, []string{words[int(all["a"])], words[int(all["b"])], words[int(all["c"])]})
}
