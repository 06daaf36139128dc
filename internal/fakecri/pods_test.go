package fakecri_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/fakecri"
)

func TestASeedMakesIDsReproducible(t *testing.T) {
	ids := func(seed uint64) []string {
		c := start(t, fakecri.Config{Seed: seed})
		p, ctr := c.running("web")
		return []string{p, ctr}
	}
	assert.Equal(t, ids(7), ids(7))
	assert.NotEqual(t, ids(7), ids(8))
	assert.NotEqual(t, ids(0), ids(0))
}

func TestAnUnknownHandlerReservesNoName(t *testing.T) {
	c := start(t, fakecri.Config{})
	_, err := c.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: podConfig("web"), RuntimeHandler: "kata"})
	assertCode(t, codes.Unknown, err)
	assert.ErrorContains(t, err, `no runtime for "kata" is configured`)
	assert.Empty(t, c.rt.Pods())
	c.run("web")
}

func TestAPodsNameIsReservedUntilThePodIsRemoved(t *testing.T) {
	c := start(t, fakecri.Config{})
	id := c.run("web")
	again := &runtimeapi.RunPodSandboxRequest{Config: podConfig("web")}
	_, err := c.RunPodSandbox(t.Context(), again)
	assertCode(t, codes.Unknown, err)
	assert.ErrorContains(t, err, id)

	_, err = c.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
	require.NoError(t, err)
	_, err = c.RunPodSandbox(t.Context(), again)
	assertCode(t, codes.Unknown, err)

	next := &runtimeapi.RunPodSandboxRequest{Config: podConfig("web")}
	next.Config.Metadata.Attempt = 1
	_, err = c.RunPodSandbox(t.Context(), next)
	require.NoError(t, err, "another attempt has another name")

	_, err = c.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
	require.NoError(t, err)
	_, err = c.RunPodSandbox(t.Context(), again)
	assert.NoError(t, err)
}

func TestAPodIsRemovedWithItsContainers(t *testing.T) {
	c := start(t, fakecri.Config{})
	otherPod, other := c.running("other")
	pod, ctr := c.running("web")
	created := c.create(pod, "web", "second")

	_, err := c.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod})
	require.NoError(t, err)
	assert.Equal(t, runtimeapi.PodSandboxState_SANDBOX_NOTREADY, c.podStatus(pod).GetState())
	assert.Equal(t, runtimeapi.ContainerState_CONTAINER_EXITED, c.containerStatus(ctr).GetState())
	assert.EqualValues(t, 137, c.containerStatus(ctr).GetExitCode())
	assert.Equal(t, runtimeapi.ContainerState_CONTAINER_CREATED, c.containerStatus(created).GetState())
	_, err = c.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: created})
	assertCode(t, codes.Unknown, err)

	_, err = c.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod})
	require.NoError(t, err)
	require.Len(t, c.rt.Pods(), 1)
	assert.Equal(t, otherPod, c.rt.Pods()[0].GetId())
	require.Len(t, c.rt.Containers(), 1)
	assert.Equal(t, other, c.rt.Containers()[0].GetId())
}

func TestStoppingAndRemovingUnknownIDsSucceeds(t *testing.T) {
	c := start(t, fakecri.Config{})
	_, err := c.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: "7f"})
	assert.NoError(t, err)
	_, err = c.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: "7f"})
	assert.NoError(t, err)
	_, err = c.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: "7f"})
	assert.NoError(t, err)
	_, err = c.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: "7f"})
	assert.NoError(t, err)
	_, err = c.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: "absent"}})
	assert.NoError(t, err)
}

func TestStoppingAndRemovingWithoutAnIDFails(t *testing.T) {
	c := start(t, fakecri.Config{})
	_, err := c.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{})
	assertCode(t, codes.Unknown, err)
	_, err = c.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{})
	assertCode(t, codes.Unknown, err)
}
