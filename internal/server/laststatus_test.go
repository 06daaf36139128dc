package server

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/fakecri"
	"github.com/criproxy/criproxy/internal/memory"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// kubelet takes the states of containers from the status of their pod when it reads events.
func TestAPodsStatusIsNotOlderThanItsContainers(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*testing.T, *node, *pod) error{
		"a container exits": func(t *testing.T, n *node, p *pod) error {
			id := n.runtimes[1].Containers()[0].GetId()
			require.NoError(t, n.runtimes[1].Exit(id, 1))
			testkit.Eventually(t, "a list shows it", func() bool { // a late list comes from memory
				all, err := listContainers(nil).unary(n)
				return err == nil && slices.ContainsFunc(all, func(c proto.Message) bool {
					return c.(*runtimeapi.Container).GetState() == runtimeapi.ContainerState_CONTAINER_EXITED
				})
			})
			return nil
		},
		"a container is stopped": func(_ *testing.T, n *node, p *pod) error {
			_, err := n.StopContainer(n.ctx(), &runtimeapi.StopContainerRequest{ContainerId: p.containers[0]})
			return err
		},
		"a container is removed": func(_ *testing.T, n *node, p *pod) error {
			_, err := n.RemoveContainer(n.ctx(), &runtimeapi.RemoveContainerRequest{ContainerId: p.containers[0]})
			return err
		},
		"a container is made": func(_ *testing.T, n *node, p *pod) error {
			_, err := n.CreateContainer(n.ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: p.sandbox, SandboxConfig: p.config, Config: &runtimeapi.ContainerConfig{
				Metadata: &runtimeapi.ContainerMetadata{Name: "more"}, Image: &runtimeapi.ImageSpec{Image: n.image(1, "busybox")}}})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, hasty, machineConfig{}, machineConfig{Config: fakecri.Config{PodStatusHasContainers: true}, backend: config.Backend{Name: "beta.io"}})
			p := n.run(1, "db", 1)
			n.known()
			ask := func() (*runtimeapi.PodSandboxStatusResponse, error) {
				return n.PodSandboxStatus(n.ctx(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.sandbox})
			}
			before, err := ask()
			require.NoError(t, err)
			require.Len(t, before.GetContainersStatuses(), 1)
			n.runtimes[1].When(testkit.Hanging("PodSandboxStatus"))
			require.NoError(t, change(t, n, p))
			n.runtimes[1].Kill()
			n.isDown(1)
			_, err = ask()
			assert.Equal(t, codes.Unavailable, status.Code(err), "memory is from before: %v", err)
		})
	}
}

func TestAnImageIsNotShownAsItWasBeforeACall(t *testing.T) {
	t.Parallel()
	for which := range 2 {
		n := newNode(t, hasty)
		pull := func(name string) {
			_, err := n.PullImage(n.ctx(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: n.image(which, name)}})
			require.NoError(t, err)
		}
		is := func(name string) error {
			_, err := n.ImageStatus(n.ctx(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: n.image(which, name)}})
			return err
		}
		pull("stays")
		pull("goes")
		n.known()
		n.runtimes[which].When(testkit.Hanging("ListImages", "StreamImages"))
		pull("comes")
		_, err := n.RemoveImage(n.ctx(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: n.image(which, "goes")}})
		require.NoError(t, err)
		n.runtimes[which].Kill()
		n.isDown(which)
		assert.Equal(t, codes.Unavailable, status.Code(is("comes")))
		assert.Equal(t, codes.Unavailable, status.Code(is("goes")))
		assert.NoError(t, is("stays"))
	}
}

func TestARuntimeThatLacksAMethodIsUpAfterAHang(t *testing.T) {
	t.Parallel()
	n := newNode(t, hasty, machineConfig{}, machineConfig{Config: fakecri.Config{NoMetrics: true}, backend: config.Backend{Name: "beta.io"}})
	n.run(1, "db", 1)
	n.known()
	n.runtimes[1].When(testkit.Hanging("ListPodSandboxMetrics"))
	_, _ = n.ListPodSandboxMetrics(n.ctx(), &runtimeapi.ListPodSandboxMetricsRequest{}) // late, or from memory
	testkit.Eventually(t, "it is slow, or even gone on a busy machine", func() bool { return n.state(1).Condition != memory.Up })
	n.runtimes[1].When(nil)
	testkit.Eventually(t, "it is up", func() bool { return n.state(1).Condition == memory.Up })
}
