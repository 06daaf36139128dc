package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/hook/plugin"
	"github.com/criproxy/criproxy/internal/testing/testkit"
	"github.com/criproxy/criproxy/internal/testing/untested"
)

// needsPrometheus skips the test if the machine lacks a program of Prometheus.
func needsPrometheus(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		untested.Skip(t, program+" is missing: it is in Debian's package prometheus")
	}
}

// freeAddress returns an address on which no process listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, free.Close())
	return free.Addr().String()
}

// A prometheusServer is a real Prometheus that scrapes a criproxy and evaluates its alerts.
type prometheusServer struct {
	testing.TB
	address string
}

func startPrometheus(t *testing.T, target string) *prometheusServer {
	t.Helper()
	dir := t.TempDir()
	monitoring, err := filepath.Abs("../../packaging/monitoring")
	require.NoError(t, err)
	// A scrape of a criproxy with the race detector takes more than a second on a machine that runs all tests.
	config := fmt.Sprintf(`
global: {scrape_interval: 3s, scrape_timeout: 3s, evaluation_interval: 500ms}
rule_files: [%[1]s/alerts.yaml, %[1]s/fleet-rules.yaml]
scrape_configs: [{job_name: criproxy, static_configs: [{targets: [%[2]q], labels: {cluster: blue}}]}]
`, monitoring, target)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o600))
	log, err := os.Create(filepath.Join(dir, "log"))
	require.NoError(t, err)
	defer log.Close() // the process has its own
	p := &prometheusServer{t, freeAddress(t)}
	cmd := exec.Command("prometheus", "--config.file="+dir+"/prometheus.yml", "--storage.tsdb.path="+dir+"/data", "--web.listen-address="+p.address)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it has nothing to save
		_ = cmd.Wait()         // reports the kill
		if t.Failed() {
			text, _ := os.ReadFile(log.Name()) // may not exist
			t.Logf("%s", text)
		}
	})
	return p
}

// get makes a request, and fails the test if Prometheus rejects it.
func (p *prometheusServer) get(path string, query url.Values, data any) {
	p.Helper()
	client := http.Client{Timeout: testkit.Patience, Transport: &http.Transport{DisableKeepAlives: true}}
	testkit.Eventually(p, "Prometheus answers", func() bool {
		response, err := client.Get("http://" + p.address + "/api/v1/" + path + "?" + query.Encode())
		if err != nil {
			return false // it has not started
		}
		defer response.Body.Close() // it was only read
		if response.StatusCode == http.StatusServiceUnavailable {
			return false
		}
		var answer struct {
			Status, Error string
			Data          any
		}
		answer.Data = data
		require.NoError(p, json.NewDecoder(response.Body).Decode(&answer))
		require.Equal(p, "success", answer.Status, "%s %s: %s", path, query, answer.Error)
		return true
	})
}

// query returns the labels of the samples of an expression, without samples that are NaN.
func (p *prometheusServer) query(expr string) (found []map[string]string) {
	p.Helper()
	var data struct {
		Result []struct {
			Metric map[string]string
			Value  [2]any
		}
	}
	p.get("query", url.Values{"query": {expr}}, &data)
	for _, r := range data.Result {
		if r.Value[1] != "NaN" {
			found = append(found, r.Metric)
		}
	}
	return found
}

// alerts returns the alerts that are firing or pending, with their texts.
func (p *prometheusServer) alerts() map[string]string {
	p.Helper()
	var data struct {
		Alerts []struct{ Labels, Annotations map[string]string }
	}
	p.get("alerts", nil, &data)
	all := map[string]string{}
	for _, a := range data.Alerts {
		all[a.Labels["alertname"]] = a.Annotations["summary"] + ": " + a.Annotations["description"]
	}
	return all
}

// dashboard returns the queries that Grafana sends to Prometheus.
type dashboard struct {
	Templating struct {
		List []struct{ Name, Type, Query string }
	}
	Panels []struct {
		Title   string
		Targets []struct{ Expr, LegendFormat string }
	}
}

// shows fails the test unless each query of a dashboard has an answer, while call makes calls.
func (p *prometheusServer) shows(name string, call func()) {
	p.Helper()
	file, err := os.Open("../../packaging/monitoring/" + name)
	require.NoError(p, err)
	defer file.Close() // it was only read
	var board dashboard
	require.NoError(p, json.NewDecoder(file).Decode(&board))
	require.Greater(p, len(board.Panels), 9)
	values := []string{"$__rate_interval", "1m", "$__range", "1h"} // Grafana's variables, each followed by its value
	for _, v := range board.Templating.List {
		if v.Type == "datasource" {
			continue
		}
		// Grafana implements this function with this query.
		asked := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`).FindStringSubmatch(strings.NewReplacer(values...).Replace(v.Query))
		require.Len(p, asked, 3, v.Query)
		var found []string
		testkit.Eventually(p, "there is a value for $"+v.Name, func() bool {
			p.get("label/"+asked[2]+"/values", url.Values{"match[]": {asked[1]}}, &found)
			return len(found) == 1
		})
		values = append(values, "$"+v.Name, strings.ReplaceAll(regexp.QuoteMeta(found[0]), `\`, `\\`))
	}
	for _, panel := range board.Panels {
		for _, target := range panel.Targets {
			expr := strings.NewReplacer(values...).Replace(target.Expr)
			var found []map[string]string
			testkit.Eventually(p, panel.Title+" shows something: "+expr, func() bool {
				call()
				found = p.query(expr)
				return len(found) > 0
			})
			for _, label := range regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(target.LegendFormat, -1) {
				assert.Contains(p, found[0], label[1], "%s: the legend %q", panel.Title, target.LegendFormat)
			}
		}
	}
}

// A real Prometheus scrapes a real criproxy: the panels of the dashboard have data, and the alerts are silent until
// something is wrong.
func TestTheDashboardShowsAndTheAlertsTellWhatHappens(t *testing.T) {
	untested.TakesLong(t)
	t.Parallel()
	needsPrometheus(t, "prometheus")
	p := newProcess(t)
	metrics, ro, hooks := freeAddress(t), filepath.Join(p.dir, "ro.sock"), filepath.Join(p.dir, "hooks")
	require.NoError(t, os.Mkdir(hooks, 0o700))
	config := fmt.Sprintf("metrics: %s\nhooks: %s\nlisteners:\n- path: %s\n  access: [{methods: [read-only]}]\n", metrics, hooks, ro)
	p.write(config)
	p.launch()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- plugin.Plugin{Name: "tier", Folder: hooks, Socket: filepath.Join(p.dir, "tier.sock"),
			PreRunPodSandbox: func(context.Context, *plugin.Pod) (*plugin.PodAnswer, error) { return nil, nil }}.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-ended)
	})
	client := runtimeapi.NewRuntimeServiceClient(p.connect(p.front))
	monitor := runtimeapi.NewRuntimeServiceClient(p.connect(ro))
	pods := 0
	list := func() { // the result does not matter, here and below
		_, _ = client.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
		time.Sleep(100 * time.Millisecond) // more calls would be more than a recording keeps
	}
	call := func() {
		pods++
		list()
		_, _ = client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: testkit.PodConfig(fmt.Sprint("web", pods))})
		_, _ = client.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: "unknown"})
		_, _ = monitor.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: "x"})
	}
	prometheus := startPrometheus(t, metrics)

	testkit.Eventually(t, "Prometheus has read once", func() bool { return len(prometheus.query("criproxy_ready")) == 1 })
	p.restartRuntime(true, false)
	prometheus.shows("fleet-dashboard.json", list) // which has trouble; the cache answers the lists
	p.restartRuntime(false, true)
	prometheus.shows("dashboard.json", call)

	var active map[string]string
	testkit.Eventually(t, "no alert is left", func() bool {
		active = prometheus.alerts()
		delete(active, "CriproxyListsAreSlow") // they may be slow on a machine that runs tests
		return len(active) == 0
	})
	p.runtimes[1].Kill()
	p.write(config + "listBudgte: 3s\n")
	p.runtimes[0].Kill()
	tells := []string{"CriproxyBackendDown", "CriproxyCallsFail", "CriproxyConfigNotReloaded", "CriproxyNotReady"}
	testkit.Eventually(t, "there is an alert", func() bool {
		call()
		active = prometheus.alerts()
		return !slices.ContainsFunc(tells, func(name string) bool { return active[name] == "" })
	})
	for _, name := range slices.Sorted(maps.Keys(active)) {
		assert.Contains(t, active[name], metrics, "%s does not say which node", name)
		assert.NotRegexp(t, "<no value>|error|%!|  ", active[name])
	}
	assert.Subset(t, append(tells, "CriproxyListsAreSlow", "CriproxyFindsAnError"), slices.Sorted(maps.Keys(active)))
	var rules struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError string }
		}
	}
	prometheus.get("rules", nil, &rules)
	require.NotEmpty(t, rules.Groups)
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			assert.Equal(t, "ok", r.Health, "%s: %s", r.Name, r.LastError)
		}
	}
}
