package main

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	collector "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/gzip"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/testing/bounded"
	"github.com/criproxy/criproxy/internal/testing/testkit"
	"github.com/criproxy/criproxy/internal/testing/untested"
)

// A logStore keeps the texts of the records that it gets.
type logStore struct {
	collector.UnimplementedLogsServiceServer
	mu    sync.Mutex
	texts []string
}

func (s *logStore) Export(_ context.Context, r *collector.ExportLogsServiceRequest) (*collector.ExportLogsServiceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range r.GetResourceLogs() {
		for _, scope := range of.GetScopeLogs() {
			for _, record := range scope.GetLogRecords() {
				s.texts = append(s.texts, record.GetBody().GetStringValue())
			}
		}
	}
	return nil, nil
}

// count returns how many records have a text.
func (s *logStore) count(text string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Count(strings.Join(s.texts, "\n"), text)
}

func newLogStore(t *testing.T) (s *logStore, url string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s = &logStore{}
	server := grpc.NewServer()
	collector.RegisterLogsServiceServer(server, s)
	go server.Serve(l)
	t.Cleanup(server.Stop)
	return s, "http://" + l.Addr().String()
}

func TestTheExportOutlastsReloadAndHandover(t *testing.T) {
	untested.TakesLong(t)
	t.Parallel()
	store, url := newLogStore(t)
	p := startedProcess(t)
	assert.Nil(t, func() any { _, r := p.status(); return r.Export }())
	goroutines := p.scrape()["go_goroutines"]
	assert.Positive(t, goroutines)
	p.write("export: {url: " + url + ", node: node-7}\n")
	testkit.Eventually(t, "a reload turns it on", func() bool {
		_, r := p.status()
		return r.Export != nil && r.Export.URL == url
	})
	p.runPod("first", "beta.io")
	p.restartRuntime(true, false)
	testkit.Eventually(t, "the records are there", func() bool {
		return store.count("RunPodSandbox default/first") == 1 && store.count("beta.io is gone: ") == 1
	})
	var text string
	var r admin.Report
	testkit.Eventually(t, "criproxy has the store's answer", func() bool { text, r = p.status(); return r.Export.Sent > 0 })
	assert.Regexp(t, "EXPORT\n  "+url+" has taken [0-9]+ records; waiting: 0\n", text)
	m := p.scrape()
	assert.Equal(t, 1.0, m["criproxy_export_up"])
	assert.Positive(t, m["criproxy_export_sent_records_total"])
	assert.Contains(t, m, `criproxy_export_lost_records_total{why="full"}`)
	p.restartRuntime(false, true)
	p.handOver()
	p.runPod("second", "beta.io")
	testkit.Eventually(t, "the next process goes on", func() bool {
		return store.count("RunPodSandbox default/second") == 1 && store.count("criproxy took over") == 1
	})
	p.runPod("third", "beta.io")
	p.end()
	testkit.Eventually(t, "the end sends the rest", func() bool {
		return store.count("RunPodSandbox default/third") == 1 && store.count("criproxy has ended") == 1
	})
	assert.Equal(t, 1, store.count("RunPodSandbox default/first"), "nothing is sent twice")
}

// The store is a socket that nobody accepts on: each call is as fast as without it, and the end does not wait for it.
func TestAStoreThatHangsDelaysNothing(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	p := newProcess(t)
	p.write("export: {url: 'http://" + l.Addr().String() + "/v1/logs', method: '*', bodies: true}\n")
	cmd := p.launch()
	stop := p.hammer()
	p.runPod("web", "beta.io")
	testkit.Eventually(t, "it tries to send", func() bool { _, r := p.status(); return r.Export.Queued > 100 })
	assert.Positive(t, stop(), "and no call has failed")
	p.end()
	_ = cmd.Wait()
	assert.Zero(t, p.logged("cuts off"))
	assert.Equal(t, 1, p.logged(`"Records of calls are lost, because they are not exported; calls are not affected" why="stopped"`))
}

// Values of headers may be secret: they are shown nowhere.
func TestHeadersOfExportAreShownNowhere(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	_, url := newLogStore(t)
	p.write("export: {url: " + url + ", headers: {x-api-key: hunter2, authorization: Bearer hunter3}}\n")
	p.launch()
	for _, args := range [][]string{{"status", "-o", "json"}, {"check", "-config", p.config, "-o", "json"}} {
		out, _ := p.ask(args...)
		assert.NotContains(t, out, "hunter", args)
	}
	file := filepath.Join(p.dir, "bundle.tar.gz")
	p.says("support", file)
	bundle, err := os.Open(file)
	require.NoError(t, err)
	defer bundle.Close() // it was only read
	z, err := gzip.NewReader(bundle)
	require.NoError(t, err)
	all, err := io.ReadAll(z)
	require.NoError(t, err)
	assert.Contains(t, string(all), "x-api-key: [redacted]")
	assert.NotContains(t, string(all), "hunter")
}

// The plugin of node-problem-detector: testbed/cluster has the real one.
func TestTheMonitorOfNodesTellsWhatIsWrong(t *testing.T) {
	untested.TakesLong(t)
	t.Parallel()
	p := startedProcess(t)
	script := func(about, admin string) string {
		cmd := bounded.Command(t, "../../packaging/kubernetes/node-problem-detector/criproxy-monitor.sh", about)
		cmd.Env = append(os.Environ(), "CRIPROXY=criproxy", "CRIPROXY_ADMIN="+admin)
		out, _ := cmd.CombinedOutput()
		return fmt.Sprintf("%d %s", cmd.ProcessState.ExitCode(), out)
	}
	admin := config.AdminBeside(p.front)
	p.runPod("web", "beta.io")
	for _, about := range []string{"gone", "slow", "ready"} {
		testkit.Eventually(t, about+": all is well", func() bool { return script(about, admin) == "0 " })
	}
	p.restartRuntime(true, false)
	assert.Regexp(t, "^1 beta.io gone since [A-Z][a-z]{2} [0-9]+ [0-9]{2}:[0-9]{2}, 1 pod\n$", script("gone", admin))
	assert.Equal(t, "0 ", script("slow", admin))
	assert.Equal(t, "0 ", script("ready", admin))
	p.runtimes[0].Kill()
	testkit.Eventually(t, "the primary is gone as well", func() bool {
		return strings.Contains(script("gone", admin), "primary gone since ")
	})
	assert.Regexp(t, "^1 primary gone since .*; beta.io gone since ", script("ready", admin))
	assert.Regexp(t, "^1 criproxy: ", script("ready", "/none"))
	assert.Regexp(t, "^2 criproxy does not answer: ", script("gone", "/none"))
	assert.Regexp(t, "^2 criproxy does not answer: ", script("slow", "/none"))
}
