package fakecri_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/testing/testkit"
)

func TestAnUnknownHandlerReservesNoName(t *testing.T) {
	c := start(t)
	_, err := c.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: testkit.PodConfig("web"), RuntimeHandler: "kata"})
	testkit.AssertCode(t, codes.Unknown, err)
	assert.ErrorContains(t, err, `no runtime for "kata" is configured`)
	assert.Empty(t, c.rt.Pods())
	c.run("web")
}

func TestAPodsNameIsReservedUntilThePodIsRemoved(t *testing.T) {
	c := start(t)
	id := c.run("web")
	again := &runtimeapi.RunPodSandboxRequest{Config: testkit.PodConfig("web")}
	_, err := c.RunPodSandbox(t.Context(), again)
	testkit.AssertCode(t, codes.Unknown, err)
	assert.ErrorContains(t, err, id)

	_, err = c.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
	require.NoError(t, err)
	_, err = c.RunPodSandbox(t.Context(), again)
	testkit.AssertCode(t, codes.Unknown, err)

	next := &runtimeapi.RunPodSandboxRequest{Config: testkit.PodConfig("web")}
	next.Config.Metadata.Attempt = 1
	_, err = c.RunPodSandbox(t.Context(), next)
	require.NoError(t, err, "another attempt has another name")

	_, err = c.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
	require.NoError(t, err)
	_, err = c.RunPodSandbox(t.Context(), again)
	assert.NoError(t, err)
}

func TestStoppingAndRemovingWithoutAnIDFails(t *testing.T) {
	c := start(t)
	_, err := c.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{})
	testkit.AssertCode(t, codes.Unknown, err)
	_, err = c.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{})
	testkit.AssertCode(t, codes.Unknown, err)
}
