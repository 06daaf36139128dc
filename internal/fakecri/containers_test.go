package fakecri_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/testing/testkit"
)

func TestAContainerLivesFromCreatedToExited(t *testing.T) {
	c := start(t)
	pod := c.run("web")
	id := c.create(pod, "web", "main")
	assert.Equal(t, runtimeapi.ContainerState_CONTAINER_CREATED, c.containerStatus(id).GetState())

	c.begin(id)
	got := c.containerStatus(id)
	assert.Equal(t, runtimeapi.ContainerState_CONTAINER_RUNNING, got.GetState())
	assert.Positive(t, got.GetStartedAt())
	assert.Zero(t, got.GetFinishedAt())
	_, err := c.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id})
	testkit.AssertCode(t, codes.Unknown, err)

	_, err = c.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 30})
	require.NoError(t, err)
	got = c.containerStatus(id)
	assert.Equal(t, runtimeapi.ContainerState_CONTAINER_EXITED, got.GetState())
	assert.Greater(t, got.GetFinishedAt(), got.GetStartedAt())

	_, err = c.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id})
	require.NoError(t, err)
	assert.Equal(t, got.GetFinishedAt(), c.containerStatus(id).GetFinishedAt(), "a second stop changes nothing")
	_, err = c.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id})
	require.NoError(t, err)
	_, err = c.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
	testkit.AssertCode(t, codes.NotFound, err)
}

func TestAContainerNeedsItsImage(t *testing.T) {
	c := start(t)
	pod := c.run("web")
	req := &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: containerConfig("main", "absent"), SandboxConfig: testkit.PodConfig("web")}
	_, err := c.CreateContainer(t.Context(), req)
	testkit.AssertCode(t, codes.NotFound, err)

	c.pull("absent")
	_, err = c.CreateContainer(t.Context(), req)
	require.NoError(t, err)
}

func TestAContainerNeedsAReadyPod(t *testing.T) {
	c := start(t)
	c.pull("busybox")
	pod := c.run("web")
	_, err := c.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod})
	require.NoError(t, err)
	_, err = c.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: containerConfig("main", "busybox"), SandboxConfig: testkit.PodConfig("web")})
	testkit.AssertCode(t, codes.Unknown, err)
}

func TestAContainersNameIsReservedUntilItIsRemoved(t *testing.T) {
	c := start(t)
	pod := c.run("web")
	id := c.create(pod, "web", "main")
	again := &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: containerConfig("main", "busybox"), SandboxConfig: testkit.PodConfig("web")}
	_, err := c.CreateContainer(t.Context(), again)
	testkit.AssertCode(t, codes.Unknown, err)
	assert.ErrorContains(t, err, id)
	_, err = c.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id[:40]})
	require.NoError(t, err)
	_, err = c.CreateContainer(t.Context(), again)
	assert.NoError(t, err)
}
