package integration

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	criclient "k8s.io/cri-client/pkg"
	"k8s.io/utils/exec"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// kubelet returns the kubelet's own clients for a socket. Creating them is a test: they need answers to
// Version and ImageFsInfo.
func kubelet(t testing.TB, socket string) (internalapi.RuntimeService, internalapi.ImageManagerService) {
	t.Helper()
	return testbed.NewClients(t, "unix://"+socket)
}

func TestKubeletsClientLeadsAWholeLife(t *testing.T) {
	b := start(t)
	for _, s := range b.sides() {
		t.Run(s.Containerd.Version, func(t *testing.T) { life(t, b, s, b.proxy.Socket()) })
	}
}

// life makes all of the kubelet's calls about a pod on s, through a socket.
func life(t *testing.T, b *bench, s *side, socket string) {
	runtime, images := kubelet(t, socket)
	ctx := t.Context()

	version, err := runtime.Version(ctx, "0.1.0")
	require.NoError(t, err)
	assert.Equal(t, "0.1.0", version.Version, "kubelet wants exactly this")
	assert.Equal(t, "containerd", version.RuntimeName)
	state, err := runtime.Status(ctx, false)
	require.NoError(t, err)
	for _, c := range state.Status.Conditions {
		assert.True(t, c.Status || c.Type == "ContainerdHasNoDeprecationWarnings", "%s: %s %s", c.Type, c.Reason, c.Message)
	}
	require.NoError(t, runtime.UpdateRuntimeConfig(ctx, &runtimeapi.RuntimeConfig{NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: ""}}))

	b.forget(t, socket, "testbed/app:1")
	config := s.choose(s.PodConfig("kubelet"))
	spec := &runtimeapi.ImageSpec{Image: s.image(s.app()), Annotations: config.Annotations}
	found, err := images.ImageStatus(ctx, spec, false)
	require.NoError(t, err)
	assert.Nil(t, found.Image)
	id, err := images.PullImage(ctx, spec, nil, config)
	require.NoError(t, err)
	assert.NotNil(t, s.has(t, s.app()))
	assert.Nil(t, b.other(s).has(t, s.app()))
	found, err = images.ImageStatus(ctx, &runtimeapi.ImageSpec{Image: s.image(s.app())}, false)
	require.NoError(t, err)
	assert.Equal(t, id, found.Image.Id)

	pod, err := runtime.RunPodSandbox(ctx, config, "")
	require.NoError(t, err)
	back := s.bare(t, pod)
	container := runtimes.ContainerConfig("app", id, "tick")
	container.Image.UserSpecifiedImage = s.image(s.app())
	containerID, err := runtime.CreateContainer(ctx, pod, container, config)
	require.NoError(t, err)
	require.NoError(t, runtime.StartContainer(ctx, containerID))
	assert.Equal(t, runtimeapi.ContainerState_CONTAINER_RUNNING, s.containers(t)[s.bare(t, containerID)].State)

	pods, err := runtime.ListPodSandbox(ctx, &runtimeapi.PodSandboxFilter{})
	require.NoError(t, err)
	assert.Equal(t, []string{pod}, ids(pods, (*runtimeapi.PodSandbox).GetId))
	podStatus, err := runtime.PodSandboxStatus(ctx, pod, false)
	require.NoError(t, err)
	assert.Equal(t, pod, podStatus.Status.Id)
	containers, err := runtime.ListContainers(ctx, &runtimeapi.ContainerFilter{})
	require.NoError(t, err)
	assert.Equal(t, []string{containerID}, ids(containers, (*runtimeapi.Container).GetId))
	containerStatus, err := runtime.ContainerStatus(ctx, containerID, false)
	require.NoError(t, err)
	assert.Equal(t, containerID, containerStatus.Status.Id)

	stdout, stderr, err := runtime.ExecSync(ctx, containerID, []string{"app", "print", "out", "then", "warn", "err"}, 20*time.Second)
	require.NoError(t, err)
	assert.Equal(t, "out\nerr\n", string(stdout)+string(stderr))
	_, _, err = runtime.ExecSync(ctx, containerID, []string{"app", "exit", "7"}, 20*time.Second)
	var exit exec.ExitError
	require.ErrorAs(t, err, &exit)
	assert.Equal(t, 7, exit.ExitStatus())
	_, _, err = runtime.ExecSync(ctx, containerID, []string{"app", "sleep"}, time.Second)
	assert.ErrorIs(t, err, criclient.ErrCommandTimedOut, "that is DeadlineExceeded, by which kubelet tells a failed probe from a failed runtime")

	stats, err := runtime.ListContainerStats(ctx, &runtimeapi.ContainerStatsFilter{})
	require.NoError(t, err)
	assert.Equal(t, []string{containerID}, ids(stats, func(s *runtimeapi.ContainerStats) string { return s.Attributes.Id }))
	require.NoError(t, runtime.UpdateContainerResources(ctx, containerID, &runtimeapi.ContainerResources{Linux: &runtimeapi.LinuxContainerResources{CpuShares: 256}}))
	log := filepath.Join(config.LogDirectory, container.LogPath)
	fileWith(t, log, "tick 1\n")
	require.NoError(t, os.Rename(log, log+".1"))
	require.NoError(t, runtime.ReopenContainerLog(ctx, containerID))
	fileWith(t, log, "tick ")

	require.NoError(t, runtime.StopContainer(ctx, containerID, 20))
	assert.Equal(t, runtimeapi.ContainerState_CONTAINER_EXITED, s.containers(t)[s.bare(t, containerID)].State)
	require.NoError(t, runtime.RemoveContainer(ctx, containerID))
	assert.Empty(t, s.containers(t))
	require.NoError(t, runtime.StopPodSandbox(ctx, pod))
	require.NoError(t, runtime.RemovePodSandbox(ctx, pod))
	assert.NotContains(t, s.pods(t), back)

	// As kubelet's image garbage collection does: by the id in the list.
	all, err := images.ListImages(ctx, nil)
	require.NoError(t, err)
	assert.Contains(t, ids(all, (*runtimeapi.Image).GetId), id)
	require.NoError(t, images.RemoveImage(ctx, &runtimeapi.ImageSpec{Image: id}))
	assert.Nil(t, s.has(t, s.app()))
}
