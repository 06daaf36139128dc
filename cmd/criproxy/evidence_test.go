package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/settings/config"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// incident makes a call that fails, and one with a secret.
func (p *process) incident() {
	p.Helper()
	p.runtimes[1].When(testkit.Failing(status.Error(codes.Internal, "out of order"), "StartContainer"))
	client := runtimeapi.NewRuntimeServiceClient(p.connect(p.front))
	_, err := client.StartContainer(p.Context(), &runtimeapi.StartContainerRequest{ContainerId: "beta.io__7f"})
	require.ErrorContains(p, err, "out of order")
	_, _ = runtimeapi.NewImageServiceClient(p.connect(p.front)).PullImage(p.Context(), &runtimeapi.PullImageRequest{
		Image: &runtimeapi.ImageSpec{Image: "a.example/b:1"}, Auth: &runtimeapi.AuthConfig{Password: "hunter2"}})
}

// remembers fails the test unless the serving process knows of the incident.
func (p *process) remembers() {
	p.Helper()
	_, r := p.status()
	require.NotEmpty(p, r.Errors)
	assert.Equal(p, "StartContainer beta.io Internal out of order", strings.Join([]string{r.Errors[0].Method, r.Errors[0].Backend, r.Errors[0].Code, r.Errors[0].Message}, " "))
	path := filepath.Join(p.dir, "dump.jsonl")
	_, err := p.ask("dump", path)
	require.NoError(p, err)
	defer os.Remove(path)
	data, err := os.ReadFile(path)
	require.NoError(p, err)
	assert.Contains(p, string(data), "out of order")
	assert.Contains(p, string(data), `"method":"/runtime.v1.ImageService/PullImage"`)
	assert.NotContains(p, string(data), "hunter2")
}

func TestTheEvidenceSurvivesAHandover(t *testing.T) {
	t.Parallel()
	p := startedProcess(t)
	p.incident()
	testkit.Eventually(t, "criproxy knows what the second runtime is", func() bool { _, r := p.status(); return r.Backends[1].Runtime != "" })
	p.restartRuntime(true, false)
	var out strings.Builder
	ended := make(chan error, 1)
	go func() {
		ended <- run(t.Context(), []string{"tail", "-o", "json", "-method", "Version", "-admin", config.AdminBeside(p.front)}, &out, &out)
	}()
	for i := range 2 {
		p.handOver()
		p.remembers()
		_, r := p.status()
		require.NotEmpty(t, r.Backends[1].Outages, "after handover %d", i)
		assert.NotEmpty(t, r.Backends[1].Runtime)
	}
	p.end()
	<-ended // tail has looked for another process
	assert.Contains(t, out.String(), "another process has taken over")
}

func TestTheEvidenceSurvivesACrash(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	cmd := p.launch()
	p.incident()
	dir := filepath.Join(p.dir, "state")
	recorders := func() []string {
		files, _ := filepath.Glob(filepath.Join(dir, "recorder-*.binlog"))
		return files
	}
	files := map[string]string{filepath.Join(dir, "evidence.json"): "out of order"} // :: path → content at the end
	testkit.Eventually(t, "it is written", func() bool {
		for _, path := range recorders() {
			files[path] = "PullImage"
		}
		for path, last := range files {
			data, _ := os.ReadFile(path)
			if !strings.Contains(string(data), last) {
				return false
			}
			assert.NotContains(t, string(data), "hunter2")
		}
		return len(files) == 2
	})
	for path := range files {
		info, err := os.Stat(path)
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	}
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	p.launch()
	p.remembers()
	testkit.Eventually(t, "the files of the old process are gone", func() bool {
		now := recorders()
		return len(now) == 1 && files[now[0]] == ""
	})
	p.end()
}

// A recording with secrets stays in memory.
func TestEvidenceWithSecretsIsNotKept(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.write("unsafeRaw: true\n")
	p.launch()
	p.incident()
	p.handOver()
	dump, err := p.ask("dump")
	require.NoError(t, err)
	assert.NotContains(t, dump, "hunter2")
	var r admin.Report
	_, r = p.status()
	assert.NotEmpty(t, r.Errors)
	p.end()
	files, _ := filepath.Glob(filepath.Join(p.dir, "state", "recorder-*"))
	assert.Empty(t, files)
}
