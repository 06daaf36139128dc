package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/telemetry"
	"github.com/criproxy/criproxy/internal/server"
	"github.com/criproxy/criproxy/internal/testing/bounded"
)

// allMetrics returns the names of all metrics of criproxy.
func allMetrics(t *testing.T) []string {
	m := telemetry.NewMetrics()
	m.Registry.MustRegister(server.NewGauges(nil, nil))
	telemetry.NewLosses(m.Registry)
	descs := make(chan *prometheus.Desc, 1000)
	m.Registry.Describe(descs)
	close(descs)
	var names []string
	for d := range descs {
		name := regexp.MustCompile(`fqName: "(criproxy_\w+)"`).FindStringSubmatch(d.String())
		if name != nil && !slices.Contains(names, name[1]) {
			names = append(names, name[1])
		}
	}
	require.Greater(t, len(names), 20)
	return names
}

func TestDashboardAlertsAndDocsNameRealMetrics(t *testing.T) {
	t.Parallel()
	all := allMetrics(t)
	root := filepath.Join("..", "..")
	for _, file := range []string{"packaging/monitoring/dashboard.json", "packaging/monitoring/fleet-dashboard.json", "packaging/monitoring/alerts.yaml", "packaging/monitoring/fleet-rules.yaml", "docs/metrics.md"} {
		text, err := os.ReadFile(filepath.Join(root, file))
		require.NoError(t, err)
		text = regexp.MustCompile(`\w+:criproxy_\w+:\w+`).ReplaceAll(text, nil) // what rules record
		found := regexp.MustCompile(`\bcriproxy_[a-z_]+`).FindAllString(string(text), -1)
		assert.NotEmpty(t, found, file)
		for _, name := range found {
			if !slices.Contains(all, name) {
				name = strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_count"), "_sum")
			}
			assert.Contains(t, all, name, file)
		}
		if strings.HasSuffix(file, ".md") {
			for _, name := range all {
				assert.Contains(t, found, name, "%s does not describe it", file)
			}
		}
	}
}

func TestPromtoolAcceptsTheAlerts(t *testing.T) {
	t.Parallel()
	needsPrometheus(t, "promtool")
	out, err := bounded.Command(t, "promtool", "check", "rules", "--lint-fatal", "../../packaging/monitoring/alerts.yaml", "../../packaging/monitoring/fleet-rules.yaml").CombinedOutput()
	assert.NoError(t, err, "%s", out)
	p := startedProcess(t)
	response, err := admin.NewClient(config.AdminBeside(p.front)).Get(t.Context(), "/metrics")
	require.NoError(t, err)
	defer response.Body.Close() // it was only read
	check := bounded.Command(t, "promtool", "check", "metrics")
	check.Stdin = response.Body
	out, err = check.CombinedOutput()
	assert.NoError(t, err, "%s", out)
}
