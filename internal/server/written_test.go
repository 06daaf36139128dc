package server

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/config"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// shown is the image of a container as a client sees it.
type shown struct{ status, list, user string }

// images returns the image of each container as a client sees it, and asserts that its ids are
// in the list of images.
func (n *node) images(p *pod) map[string]shown {
	n.Helper()
	images, err := n.ListImages(n.ctx(), &runtimeapi.ListImagesRequest{})
	require.NoError(n, err)
	ids := idsOf(messages(images.GetImages()))
	all := map[string]shown{}
	for _, l := range []listing{listContainers(nil), listContainers(&runtimeapi.ContainerFilter{PodSandboxId: p.sandbox})} {
		unary, streamed := l.both(n)
		for _, item := range append(unary, streamed...) {
			c := item.(*runtimeapi.Container)
			all[c.GetId()] = shown{list: c.GetImage().GetImage(), user: c.GetImage().GetUserSpecifiedImage()}
			assert.Contains(n, ids, c.GetImageId(), "or the image would be collected as garbage")
			assert.Contains(n, ids, c.GetImageRef())
			assert.Equal(n, map[string]string{"io.kubernetes.container.hash": "5e1f"}, c.GetAnnotations())
		}
	}
	for id, s := range all {
		is, err := n.ContainerStatus(n.ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
		require.NoError(n, err)
		s.status = is.GetStatus().GetImage().GetImage()
		all[id] = s
		assert.Contains(n, ids, is.GetStatus().GetImageId())
		assert.Equal(n, map[string]string{"io.kubernetes.container.hash": "5e1f"}, is.GetStatus().GetAnnotations())
	}
	return all
}

func TestAnImageIsShownAsItWasWritten(t *testing.T) {
	t.Parallel()
	const tag = "docker.io/library/app:1" // as the runtimes complete it
	for _, ids := range []string{config.PrefixIDs, config.NativeIDs} {
		n := newNode(t, func(c *config.Config) { c.IDs = ids }, machineConfig{}, machineConfig{backend: config.Backend{Name: "beta.io", Handlers: map[string]string{"two": "runc"}}})
		first, second := n.runWith("", "first", "app:1"), n.runWith("two", "second", "app:1")
		n.add(second, "beta.io/app:1")
		id := n.runtimes[0].Images()[0].GetId()
		want := map[string]shown{
			first.containers[0]:  {status: tag, list: id, user: "app:1"},
			second.containers[0]: {status: tag, list: "beta.io/" + id, user: "app:1"},
			second.containers[1]: {status: "beta.io/" + tag, list: "beta.io/" + id, user: "beta.io/app:1"},
		}
		assert.Equal(t, want, n.images(second), "ids %s", ids)
		for _, c := range n.runtimes[1].Containers() {
			assert.Equal(t, "app:1", c.GetImage().GetUserSpecifiedImage(), "the runtime knows no prefix")
		}

		// An id does not tell the written name, and an older kubelet sends nothing else.
		byID, err := n.CreateContainer(n.ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: second.sandbox, SandboxConfig: second.config, Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "byid"}, Image: &runtimeapi.ImageSpec{Image: "beta.io/" + id}, Annotations: map[string]string{"io.kubernetes.container.hash": "5e1f"}}})
		require.NoError(t, err)
		want[byID.GetContainerId()] = shown{status: "beta.io/" + tag, list: "beta.io/" + id}
		assert.Equal(t, want, n.images(second))

		n.stop() // loses its cache
		n.cfg.StateDir += ".other"
		n.start()
		n.known()
		assert.Equal(t, want, n.images(second), "ids %s, after a restart", ids)
		n.runtimes[1].Kill()
		n.isDown(1)
		assert.Equal(t, want, n.images(second), "ids %s, from the cache", ids)
	}
}
