package fleet

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/fakecri"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/testing/bounded"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

func TestMain(m *testing.M) { os.Exit(bounded.Run(m)) }

// built builds a program of the module in a folder, or of one that it requires, and returns its path.
func built(t *testing.T, dir, module, pkg string) string {
	t.Helper()
	path := filepath.Join(dir, filepath.Base(pkg))
	out, err := bounded.Build(t, "build", "-C", module, "-ldflags=-w", "-o", path, pkg).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

// started starts a program, which ends with the test.
func started(t *testing.T, program string, args ...string) *exec.Cmd {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), filepath.Base(program)+".log"))
	require.NoError(t, err)
	cmd := bounded.Command(t, program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("%s:\n%s", program, text[max(0, len(text)-4000):])
		}
		log.Close()
	})
	return cmd
}

// freeAddress returns an address that a program can listen at.
func freeAddress(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// answers waits until a server answers.
func answers(t *testing.T, address string) {
	testkit.Eventually(t, address+" takes connections", func() bool {
		c, err := net.Dial("tcp", address)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

// A node is a criproxy with two runtimes.
type node struct {
	testing.TB
	cmd      *exec.Cmd
	admin    string
	runtimes []*testkit.Machine
	runtime  runtimeapi.RuntimeServiceClient
	images   runtimeapi.ImageServiceClient
}

func newNode(t *testing.T, criproxy, name, export string) *node {
	dir := testkit.SocketDir(t)
	n := &node{TB: t, admin: dir + "/c.admin.sock"}
	for i, runtime := range []string{"", "kata.io"} {
		m := testkit.NewMachine(t, runtime, fmt.Sprintf("%s/%d.sock", dir, i), fakecri.Config{})
		m.Start()
		n.runtimes = append(n.runtimes, m)
	}
	config := fmt.Sprintf("listen: %[1]s/c.sock\nstateDir: %[1]s/state\ngoneAfter: 3s\nexport: {url: %[2]q, node: %[3]s}\nbackends:\n- address: %[1]s/0.sock\n- {name: kata.io, address: %[1]s/1.sock}\n", dir, export, name)
	require.NoError(t, os.WriteFile(dir+"/c.yaml", []byte(config), 0o600))
	n.cmd = started(t, criproxy, "-config", dir+"/c.yaml")
	testkit.Eventually(t, name+" serves", func() bool { return testkit.Connects(n.admin) })
	cc := testkit.Dialed(t, dir+"/c.sock")
	n.runtime, n.images = runtimeapi.NewRuntimeServiceClient(cc), runtimeapi.NewImageServiceClient(cc)
	n.is("up")
	return n
}

// is waits until kata.io is in a state.
func (n *node) is(state string) {
	testkit.Eventually(n, "kata.io is "+state, func() bool {
		var r admin.Report
		_, err := admin.NewClient(n.admin).Read(n.Context(), "status", &r)
		return err == nil && len(r.Backends) == 2 && r.Backends[1].State == state && r.Ready
	})
}

// run makes a pod, and returns its id.
func (n *node) run(name string) string {
	n.Helper()
	cfg := testkit.PodConfig(name)
	cfg.Metadata.Namespace = "shop"
	cfg.Annotations = map[string]string{"kubernetes.io/target-runtime": "kata.io"}
	ran, err := n.runtime.RunPodSandbox(n.Context(), &runtimeapi.RunPodSandboxRequest{Config: cfg})
	require.NoError(n, err)
	return ran.GetPodSandboxId()
}

// end ends the criproxy, which sends the rest.
func (n *node) end() {
	require.NoError(n, n.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(n, n.cmd.Wait())
}

// A store is a VictoriaLogs.
type store struct {
	testing.TB
	address string
}

// ask returns the rows of the answer to a query.
func (s store) ask(query string) (rows []map[string]string) {
	s.Helper()
	response, err := (&http.Client{Timeout: time.Minute}).PostForm("http://"+s.address+"/select/logsql/query", url.Values{"query": {query}})
	require.NoError(s, err)
	defer response.Body.Close() // it was only read
	body, err := io.ReadAll(response.Body)
	require.NoError(s, err)
	require.Equal(s, 200, response.StatusCode, "%s\n%s", query, body)
	for line := range bytes.Lines(body) {
		var row map[string]string
		require.NoError(s, json.Unmarshal(line, &row), "%s", line)
		rows = append(rows, row)
	}
	return rows
}

var question = regexp.MustCompile("(?s)\n#### ([^\n]+)\n[^#]*?```logsql\n(.*?)```")

// questions returns the queries of docs/fleet.md by their headings.
func questions(t *testing.T) map[string]string {
	text, err := os.ReadFile("../../docs/fleet.md")
	require.NoError(t, err)
	all := map[string]string{}
	for _, m := range question.FindAllStringSubmatch(string(text), -1) {
		all[m[1]] = m[2]
	}
	require.Equal(t, strings.Count(string(text), "```logsql"), len(all))
	return all
}

func TestTheStoreAnswersTheQuestionsOfTheDocs(t *testing.T) {
	dir := t.TempDir()
	criproxy := built(t, dir, "../..", "./cmd/criproxy")
	collector := built(t, dir, ".", "./collector")
	victoria := built(t, dir, ".", "github.com/VictoriaMetrics/VictoriaLogs/app/victoria-logs")
	s := store{t, freeAddress(t)}
	started(t, victoria, "-storageDataPath="+dir+"/logs", "-httpListenAddr="+s.address)
	answers(t, s.address)
	direct := "http://" + s.address + "/insert/opentelemetry/v1/logs"
	overGRPC, overHTTP := freeAddress(t), freeAddress(t)
	config := fmt.Sprintf("receivers: {otlp: {protocols: {grpc: {endpoint: %q}, http: {endpoint: %q}}}}\nprocessors: {batch: {timeout: 100ms}}\n"+
		"exporters: {otlphttp: {logs_endpoint: %q}}\nservice:\n  telemetry: {metrics: {level: none}}\n  pipelines: {logs: {receivers: [otlp], processors: [batch], exporters: [otlphttp]}}\n", overGRPC, overHTTP, direct)
	require.NoError(t, os.WriteFile(dir+"/collector.yaml", []byte(config), 0o600))
	started(t, collector, "--config="+dir+"/collector.yaml")
	answers(t, overGRPC)
	answers(t, overHTTP)

	// The troubles of three nodes, one of which sends to the store itself.
	first := newNode(t, criproxy, "node-1", "http://"+overGRPC)
	second := newNode(t, criproxy, "node-2", "http://"+overHTTP+"/v1/logs")
	third := newNode(t, criproxy, "node-3", direct)
	web := first.run("web-0")
	for range 7 {
		_, err := first.runtime.RuntimeConfig(t.Context(), &runtimeapi.RuntimeConfigRequest{})
		require.NoError(t, err)
	}
	first.runtimes[1].When(testkit.Failing(status.Error(codes.Internal, "no space left on device"), "CreateContainer"))
	_, err := first.runtime.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: web, Config: &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "nginx"}, Image: &runtimeapi.ImageSpec{Image: "registry.example/nginx:1"}, LogPath: "0.log",
	}, SandboxConfig: &runtimeapi.PodSandboxConfig{}})
	require.ErrorContains(t, err, "no space left")
	for _, m := range first.runtimes {
		m.When(testkit.Failing(status.Error(codes.Unknown, "401 Unauthorized"), "PullImage"))
	}
	for _, image := range []string{"registry.example/a:1", "registry.example/b:1", "other.example/c:1"} {
		_, err := first.images.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: image}})
		require.ErrorContains(t, err, "401")
	}
	second.runtimes[1].When(testkit.Slowing(1100*time.Millisecond, "RunPodSandbox", "ListContainers"))
	second.run("slow-0")
	_, err = second.runtime.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
	require.NoError(t, err)
	second.runtimes[1].When(nil)
	third.run("db-0")
	gone := third.run("db-1")
	_, err = third.runtime.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: gone})
	require.NoError(t, err)
	_, err = third.runtime.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: gone})
	require.NoError(t, err)
	third.runtimes[1].Kill()
	third.is("gone")
	third.runtimes[1].Start()
	third.is("up")
	third.runtimes[1].Kill()
	third.is("gone")
	for _, n := range []*node{first, second, third} {
		n.end()
	}
	testkit.Eventually(t, "all three have told that they end", func() bool {
		return len(s.ask("_time:1h criproxy.change:=stopped")) == 3
	})

	// Each row has at least these values. A value that begins with a tilde is a regular expression.
	type row = map[string]string
	all := questions(t)
	for heading, want := range map[string][]row{
		"Which nodes start pods slowly?": {
			{"k8s.node.name": "node-2", "pods": "1", "slowest": "~^1\\."}, {"k8s.node.name": "~node-[13]"}, {"k8s.node.name": "~node-[13]"},
		},
		"Which runtimes are slow or gone now, and since when?": {
			{"k8s.node.name": "node-3", "criproxy.backend": "kata.io", "criproxy.change": "gone", "_time": "~^20", "criproxy.pods": "1", "criproxy.message": "~."},
		},
		"Which pods does a runtime that is gone concern?": {{"k8s.namespace.name": "shop", "k8s.pod.name": "db-0", "made": "1"}},
		"On which nodes do kubelet's lists take longer than a second?": {
			{"k8s.node.name": "node-2", "rpc.method": "ListContainers", "lists": "1", "slowest": "~^1\\."},
		},
		"From which registries do pulls fail, and why?": {
			{"registry": "registry.example", "pulls": "2", "why": "~401 Unauthorized"}, {"registry": "other.example", "pulls": "1"},
		},
		"What happened to a pod?": {
			{"k8s.node.name": "node-1", "_msg": "~^RunPodSandbox shop/web-0 .* of kata.io: OK"},
			{"k8s.node.name": "node-1", "_msg": "~^CreateContainer shop/web-0/nginx .* of kata.io: Internal after .*: no space left on device"},
		},
		"What fails most?": {
			{"k8s.node.name": "node-1", "rpc.method": "PullImage", "rpc.grpc.status_code": "2", "calls": "3"},
			{"k8s.node.name": "node-1", "rpc.method": "CreateContainer", "rpc.grpc.status_code": "13", "calls": "1"},
		},
		"Why do containers not start?": {{"criproxy.message": "no space left on device", "containers": "1", "nodes": "1"}},
		"How long were runtimes away?": {{"k8s.node.name": "node-3", "criproxy.backend": "kata.io", "criproxy.was": "gone", "times": "1", "seconds": "~^[0-9]"}},
		"Which nodes are asked most?":  {{"k8s.node.name": "node-1", "rpc.method": "RuntimeConfig", "calls": "7"}},
	} {
		query, ok := all[heading]
		require.True(t, ok, "docs/fleet.md does not ask: %s", heading)
		delete(all, heading)
		rows := s.ask(query)
		if heading != "Which nodes are asked most?" { // it lists all methods
			assert.Len(t, rows, len(want), "%s\n%v", heading, rows)
		}
		for i := range min(len(want), len(rows)) {
			for key, value := range want[i] {
				if pattern, ok := strings.CutPrefix(value, "~"); ok {
					assert.Regexp(t, pattern, rows[i][key], "%s: %s in %v", heading, key, rows)
				} else {
					assert.Equal(t, value, rows[i][key], "%s: %s in %v", heading, key, rows)
				}
			}
		}
	}
	assert.Empty(t, all, "questions of docs/fleet.md that nobody asks here")
}
