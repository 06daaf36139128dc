package server

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/testing/testkit"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// again makes all calls that, by CRI, must succeed for objects that are already gone.
func (n *node) again(id string) map[string]error {
	n.Helper()
	errs := map[string]error{}
	_, errs["StopContainer"] = n.StopContainer(n.ctx(), &runtimeapi.StopContainerRequest{ContainerId: id})
	_, errs["RemoveContainer"] = n.RemoveContainer(n.ctx(), &runtimeapi.RemoveContainerRequest{ContainerId: id})
	_, errs["StopPodSandbox"] = n.StopPodSandbox(n.ctx(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
	_, errs["RemovePodSandbox"] = n.RemovePodSandbox(n.ctx(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
	_, errs["RemoveImage"] = n.RemoveImage(n.ctx(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: "sha256:" + id}})
	return errs
}

func TestStoppingAndRemovingWhatIsGoneSucceeds(t *testing.T) {
	t.Parallel()
	for _, ids := range []string{config.PrefixIDs, config.NativeIDs} {
		for i := range 2 {
			n := newNode(t, func(c *config.Config) { c.IDs = ids })
			p := n.run(i, "gone", 2)
			_, err := n.StopPodSandbox(n.ctx(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.sandbox})
			require.NoError(t, err)
			_, err = n.RemovePodSandbox(n.ctx(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.sandbox})
			require.NoError(t, err)
			for _, id := range append(p.containers, p.sandbox, p.sandbox[:len(p.sandbox)-10], "0123456789abcdef") {
				for call, err := range n.again(id) {
					assert.NoError(t, err, "%s of %s, ids %s", call, id, ids)
				}
			}
		}
	}
}

func TestThePrimaryAnswersForAnIdOfNoRuntime(t *testing.T) {
	t.Parallel()
	n := newNode(t, func(c *config.Config) { c.IDs = config.NativeIDs })
	_, want := n.direct(0).PodSandboxStatus(n.ctx(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: "none"})
	_, got := n.PodSandboxStatus(n.ctx(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: "none"})
	assert.Equal(t, codes.NotFound, status.Code(got))
	assert.Equal(t, want.Error(), got.Error())

	p := n.run(1, "vm", 1)
	_, err := n.CreateContainer(n.ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: p.sandbox, SandboxConfig: p.config, Config: &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "debugger"},
		Image:    &runtimeapi.ImageSpec{Image: n.image(1, "busybox")},
		Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_TARGET, TargetId: "none"}}},
	}})
	testkit.AssertCode(t, codes.NotFound, err)
	assert.NotContains(t, err.Error(), "criproxy", "the runtime of the pod answers for what is in it")
}

func TestNoStopHidesWhatASilentRuntimeMayHave(t *testing.T) {
	t.Parallel()
	n := newNode(t, func(c *config.Config) { c.IDs = config.NativeIDs })
	n.runtimes[1].When(testkit.Failing(status.Error(codes.ResourceExhausted, "too much"), "ListContainers", "StreamContainers"))
	_, err := n.ListPodSandbox(n.ctx(), &runtimeapi.ListPodSandboxRequest{})
	require.NoError(t, err, "it is there")
	_, err = n.StopContainer(n.ctx(), &runtimeapi.StopContainerRequest{ContainerId: "0123"})
	testkit.AssertCode(t, codes.Unavailable, err)
}
