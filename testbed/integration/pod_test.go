package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// A pod is a pod that a test has created through a client, and the runtime on which it must be.
type pod struct {
	client
	side   *side
	config *runtimeapi.PodSandboxConfig
	id     string // in front
}

// run creates a pod on s, chosen by the annotation. When the test ends, the same client stops and removes it, and it
// must be gone from its runtime.
func run(t *testing.T, c client, s *side, name string) *pod {
	t.Helper()
	return runWith(t, c, s, s.choose(s.PodConfig(name)), "")
}

// runWith is run for a configuration and a handler.
func runWith(t *testing.T, c client, s *side, config *runtimeapi.PodSandboxConfig, handler string) *pod {
	t.Helper()
	resp, err := c.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: handler})
	require.NoError(t, err)
	p := &pod{client: c, side: s, config: config, id: resp.PodSandboxId}
	back := s.bare(t, p.id)
	require.Contains(t, s.pods(t), back)
	t.Cleanup(func() {
		p.remove(t)
		assert.NotContains(t, s.pods(t), back, "the pod is gone from %s", s.Name)
		for _, left := range s.containers(t) {
			assert.NotEqual(t, back, left.PodSandboxId, "the pod's containers are gone from %s", s.Name)
		}
	})
	return p
}

// remove stops and removes the pod. It may be called twice.
func (p *pod) remove(t testing.TB) {
	ctx := context.Background()
	_, err := p.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.id})
	assert.NoError(t, err)
	_, err = p.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.id})
	assert.NoError(t, err)
}

// back returns the pod's id on its runtime.
func (p *pod) back(t testing.TB) string { return p.side.bare(t, p.id) }

// create makes a container that runs the test program with args, and does not start it.
func (p *pod) create(t *testing.T, config *runtimeapi.ContainerConfig) string {
	t.Helper()
	p.pull(t, "testbed/app:1")
	resp, err := p.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: p.id, Config: config, SandboxConfig: p.config})
	require.NoError(t, err)
	require.Contains(t, p.side.containers(t), p.side.bare(t, resp.ContainerId))
	return resp.ContainerId
}

// start makes a container that runs the test program with args, and starts it.
func (p *pod) start(t *testing.T, args ...string) string {
	t.Helper()
	id := p.create(t, p.container(args...))
	_, err := p.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id})
	require.NoError(t, err)
	require.Equal(t, runtimeapi.ContainerState_CONTAINER_RUNNING, p.side.containers(t)[p.side.bare(t, id)].State)
	return id
}

// container returns the configuration of a container in the pod, with the image's front name.
func (p *pod) container(args ...string) *runtimeapi.ContainerConfig {
	return runtimes.ContainerConfig("app", p.side.image(p.side.app()), args...)
}

// pull pulls an image of the registry to the pod's runtime.
func (p *pod) pull(t *testing.T, image string) string {
	t.Helper()
	resp, err := p.PullImage(t.Context(), &runtimeapi.PullImageRequest{
		Image: &runtimeapi.ImageSpec{Image: p.side.image(p.side.reg.Image(image))}, SandboxConfig: p.config,
	})
	require.NoError(t, err)
	return resp.ImageRef
}

// exec runs a command in a container, which must succeed, and returns its output.
func (p *pod) exec(t *testing.T, id string, command ...string) string {
	t.Helper()
	resp, err := p.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: command, Timeout: 20})
	require.NoError(t, err)
	require.Zero(t, resp.ExitCode, "%s", resp.Stderr)
	return string(resp.Stdout)
}

// logFile returns the path of a container's log.
func (p *pod) logFile(container string) string {
	return filepath.Join(p.config.LogDirectory, container, "0.log")
}

// log returns a container's log once it holds want.
func (p *pod) log(t *testing.T, container, want string) string {
	t.Helper()
	return fileWith(t, p.logFile(container), want)
}

// fileWith returns a file's content once it holds want.
func fileWith(t *testing.T, file, want string) string {
	t.Helper()
	var content string
	eventually(t, func() error {
		data, err := os.ReadFile(file)
		if content = string(data); err == nil && !strings.Contains(content, want) {
			err = fmt.Errorf("%q is not in %s, which holds %q", want, file, content)
		}
		return err
	})
	return content
}

// eventually waits until done returns nil. If that never happens, the test fails with the last error.
func eventually(t testing.TB, done func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second) // works during clean-up, too
	defer cancel()
	require.NoError(t, host.Await(ctx, "it to succeed", done))
}

// status returns the runtime's own status of a container with the given front id.
func (p *pod) status(t testing.TB, id string) *runtimeapi.ContainerStatus {
	t.Helper()
	resp, err := p.side.ContainerStatus(context.Background(), &runtimeapi.ContainerStatusRequest{ContainerId: p.side.bare(t, id)})
	require.NoError(t, err)
	return resp.Status
}
