package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/fakecri"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/telemetry"
	"github.com/criproxy/criproxy/internal/server"
	"github.com/criproxy/criproxy/internal/testing/bounded"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// scrape returns the metrics of p, as `name{labels}` → value.
func (p *process) scrape() map[string]float64 {
	response, err := admin.NewClient(config.AdminBeside(p.front)).Get(p.Context(), "/metrics")
	require.NoError(p, err)
	defer response.Body.Close() // it was only read
	all := map[string]float64{}
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		at := strings.LastIndex(lines.Text(), " ")
		all[lines.Text()[:at]], err = strconv.ParseFloat(lines.Text()[at+1:], 64)
		require.NoError(p, err)
	}
	return all
}

func TestMetricsCountCallsOnBothLegs(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	ro := filepath.Join(p.dir, "ro.sock")
	p.write("listeners:\n- path: " + ro + "\n  access: [{methods: [read-only]}]\n")
	p.launch()
	cc := p.connect(p.front)
	client := runtimeapi.NewRuntimeServiceClient(cc)
	cfg := testkit.PodConfig("a")
	_, err := client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: cfg})
	require.NoError(t, err)
	for range 3 {
		_, err := client.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: "gamma.io__12"})
		require.Error(t, err)
	}
	for i := range 100 { // names that a client makes up must not fill memory
		err := cc.Invoke(t.Context(), fmt.Sprintf("/a.b/C%d", i), &codec.Frame{}, &codec.Frame{}, grpc.ForceCodecV2(codec.Raw))
		require.Error(t, err)
	}
	_, err = runtimeapi.NewRuntimeServiceClient(p.connect(ro)).StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: "x"})
	assert.Equal(t, codes.PermissionDenied, status.Code(err))

	m := p.scrape()
	assert.Equal(t, 1.0, m[`criproxy_calls_total{code="OK",method="RunPodSandbox"}`])
	assert.Equal(t, 3.0, m[`criproxy_calls_total{code="NotFound",method="StopContainer"}`])
	assert.Equal(t, 100.0, m[`criproxy_calls_total{code="Unimplemented",method="other"}`])
	assert.Equal(t, 1.0, m[`criproxy_call_duration_seconds_count{method="RunPodSandbox"}`])
	assert.Equal(t, 1.0, m[`criproxy_backend_calls_total{backend="primary",code="OK",method="RunPodSandbox"}`])
	assert.Equal(t, 0.0, m[`criproxy_calls_in_flight{method="RunPodSandbox"}`])
	assert.NotContains(t, m, `criproxy_backend_calls_total{backend="beta.io",code="OK",method="RunPodSandbox"}`)
	assert.Greater(t, m[`criproxy_request_bytes_total{method="RunPodSandbox"}`], 10.0)
	assert.Greater(t, m[`criproxy_backend_reply_bytes_total{backend="primary",method="RunPodSandbox"}`], 10.0)
	assert.Equal(t, 1.0, m[fmt.Sprintf(`criproxy_refused_calls_total{listener=%q}`, ro)])
	assert.Equal(t, 1.0, m["criproxy_ready"])
	assert.Equal(t, 1.0, m["criproxy_config_last_reload_successful"])
	assert.Equal(t, 0.0, m[`criproxy_backend_last_known_age_seconds{backend="beta.io"}`])
	assert.Greater(t, m["criproxy_capture_events_total"], 100.0)
	for name := range m {
		assert.NotRegexp(t, `method="C\d+"`, name)
	}

	p.runtimes[1].Kill()
	testkit.Eventually(t, "it is down", func() bool { return p.scrape()[`criproxy_backend_up{backend="beta.io"}`] == 0 })
	assert.Greater(t, p.scrape()[`criproxy_backend_last_known_age_seconds{backend="beta.io"}`], 0.0)
	p.write("listBudgte: 3s\n")
	testkit.Eventually(t, "the mistake is seen", func() bool { return p.scrape()["criproxy_config_last_reload_successful"] == 0 })
	assert.Equal(t, 1.0, p.scrape()[`criproxy_config_reloads_total{result="failure"}`])
}

func TestMonitoringOverTCPIsOptionalAndShowsNoCalls(t *testing.T) {
	t.Parallel()
	at := freeAddress(t)
	p := newProcess(t)
	p.write("metrics: " + at + "\n")
	p.launch()
	get := func(path string) (int, string) {
		response, err := (&http.Client{Timeout: testkit.Patience}).Get("http://" + at + path)
		if err != nil {
			return 0, err.Error()
		}
		defer response.Body.Close() // it was only read
		text, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return response.StatusCode, string(text)
	}
	var code int
	var text string
	testkit.Eventually(t, "there are metrics", func() bool { code, text = get("/metrics"); return code == 200 })
	assert.Contains(t, text, "criproxy_build_info")
	code, text = get("/healthz")
	assert.Equal(t, "200 ok\n", fmt.Sprint(code, " ", text))
	testkit.Eventually(t, "it is ready, which the second runtime may be after the primary", func() bool {
		code, text = get("/readyz")
		return code == 200 && text == "primary: up\nbeta.io: up\n"
	})
	for _, path := range []string{"/events", "/status", "/debug/pprof/", "/hooks", "/config"} {
		code, _ = get(path)
		assert.Equal(t, 404, code, path)
		response, err := admin.NewClient(config.AdminBeside(p.front)).Get(t.Context(), path)
		require.NoError(t, err, "%s is at the admin socket", path)
		response.Body.Close()
	}
	p.handOver()
	testkit.Eventually(t, "TCP is handed over as well", func() bool { code, _ = get("/healthz"); return code == 200 })
	p.runtimes[0].Kill()
	testkit.Eventually(t, "it is not ready", func() bool { code, text = get("/readyz"); return code == 503 })
	assert.Contains(t, text, "primary: gone: ")
}

func TestHealthOfGRPCIsWhatItIs(t *testing.T) {
	t.Parallel()
	p := startedProcess(t)
	client := healthgrpc.NewHealthClient(p.connect(p.front))
	check := func(service string) string {
		r, err := client.Check(t.Context(), &healthgrpc.HealthCheckRequest{Service: service})
		if err != nil {
			return status.Code(err).String()
		}
		return r.GetStatus().String()
	}
	testkit.Eventually(t, "both runtimes are connected", func() bool { return check("") == "SERVING" && check("beta.io") == "SERVING" })
	assert.Equal(t, "SERVING", check("primary"))
	assert.Equal(t, "NotFound", check("gamma.io"))
	watch, err := client.Watch(t.Context(), &healthgrpc.HealthCheckRequest{Service: "beta.io"})
	require.NoError(t, err)
	next := func() string {
		r, err := watch.Recv()
		require.NoError(t, err)
		return r.GetStatus().String()
	}
	assert.Equal(t, "SERVING", next())
	p.runtimes[1].Kill()
	assert.Equal(t, "NOT_SERVING", next())
	assert.Equal(t, "SERVING", check(""), "another runtime's health is not ours")
	require.NoError(t, syscall.Kill(p.serving(), syscall.SIGTERM))
	_, err = watch.Recv()
	testkit.AssertCode(t, codes.Unavailable, err) // the open stream does not keep the process from ending
}

// Systems keep metrics for years, and over TCP every client can read them.
func TestMetricsHaveNoNamesOfPodsNorIDsNorSecrets(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.runtimes[0].Kill()
	p.runtimes[0].Replace(fakecri.Config{StreamURL: "http://harmless/" + planted})
	p.runtimes[0].Start()
	p.launch()
	cc := p.connect(p.front)
	plant(t, cc, "pod-of-mine")
	client := runtimeapi.NewRuntimeServiceClient(cc)
	pod, err := client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: testkit.PodConfig("another-pod")})
	require.NoError(t, err)
	_, err = client.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: "beta.io__12345678"})
	require.Error(t, err)
	_, err = client.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: "id-of-nobody"})
	require.NoError(t, err)
	all := p.scrape()
	require.Greater(t, len(all), 50)
	for name := range all {
		for _, word := range []string{"pod-of-mine", "another-pod", pod.GetPodSandboxId(), "12345678", "id-of-nobody", planted, "nginx", "default", "harmless"} {
			assert.NotContains(t, name, word)
		}
		for _, label := range regexp.MustCompile(`(\w+)="`).FindAllStringSubmatch(name, -1) {
			assert.Contains(t, []string{"backend", "code", "format", "le", "listener", "method", "plugin", "point", "result", "revision", "version", "goversion", "quantile", "reason", "state", "policy", "goos", "goarch", "kind", "where", "rule", "level", "direction"}, label[1], name)
		}
	}
}

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
		text := readFile(t, filepath.Join(root, file))
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
