package main

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/admin"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/testkit"
)

// Wherever criproxy writes, and whatever it answers on its admin socket, with the log as
// loud as it gets.
func TestSecretsAreNowhereToBeFound(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.args = []string{"-v", "9"}
	captures := filepath.Join(p.dir, "captures")
	require.NoError(t, os.Mkdir(captures, 0o700))
	p.write("capture: {path: " + filepath.Join(captures, "c.jsonl") + "}\n")
	p.launch()
	cc := p.connect(p.front)
	runtime, images := runtimeapi.NewRuntimeServiceClient(cc), runtimeapi.NewImageServiceClient(cc)
	ctx := t.Context()

	const password, variable = "hunter2-of-the-registry", "correct-horse-in-the-environment"
	pod := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "default", Uid: "u"}}
	ran, err := runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: pod})
	require.NoError(t, err)
	for _, image := range []string{"busybox", "no such image\x00"} { // the second one fails
		_, _ = images.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: image}, SandboxConfig: pod,
			Auth: &runtimeapi.AuthConfig{Username: "somebody", Password: password, IdentityToken: password}})
	}
	request := &runtimeapi.CreateContainerRequest{PodSandboxId: ran.GetPodSandboxId(), SandboxConfig: pod, Config: &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Image: &runtimeapi.ImageSpec{Image: "busybox"},
		Envs: []*runtimeapi.KeyValue{{Key: "TOKEN", Value: []byte(variable)}},
	}}
	created, err := runtime.CreateContainer(ctx, request)
	require.NoError(t, err)
	_, err = runtime.CreateContainer(ctx, request)
	require.Error(t, err, "its name is taken")
	_, err = runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: created.GetContainerId()})
	require.NoError(t, err)
	printed, err := runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: created.GetContainerId(), Cmd: []string{"env"}})
	require.NoError(t, err)
	require.Contains(t, string(printed.GetStdout()), variable, "else this shows nothing")
	url, err := runtime.Exec(ctx, &runtimeapi.ExecRequest{ContainerId: created.GetContainerId(), Cmd: []string{"true"}, Stdout: true})
	require.NoError(t, err)
	token := url.GetUrl()[strings.LastIndexByte(url.GetUrl(), '/')+1:]
	require.NotEmpty(t, token)

	require.NoError(t, syscall.Kill(p.serving(), syscall.SIGUSR1))
	testkit.Eventually(t, "it has dumped", func() bool { return p.logged("Dumped the recording") == 1 })
	found := map[string]string{}
	for _, path := range []string{"/status", "/metrics", "/config", "/events", "/hooks", "/debug/pprof/goroutine?debug=2", "/debug/pprof/heap", "/debug/pprof/cmdline"} {
		response, err := admin.NewClient(config.AdminBeside(p.front)).Get(ctx, path)
		if err != nil {
			continue // not everything is there in every version
		}
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		response.Body.Close()
		found[path] = string(body)
	}
	p.end()
	require.NoError(t, filepath.WalkDir(p.dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			data, err := os.ReadFile(path)
			if errors.Is(err, fs.ErrNotExist) {
				return nil // it was a file on its way to another name
			}
			require.NoError(t, err)
			found[path] = string(data)
		}
		return err
	}))
	for _, must := range []string{p.log, filepath.Join(captures, "c.jsonl"), "/status", "/events", "/debug/pprof/goroutine?debug=2"} {
		assert.NotEmpty(t, found[must], must)
	}
	assert.Contains(t, found[p.log], "CreateContainer", "the log has the calls")
	for where, text := range found {
		for _, secret := range []string{password, variable, token} {
			assert.NotContains(t, text, secret, "in %s", where)
		}
	}
}
