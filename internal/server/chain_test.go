package server

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/testing/testkit"
	"github.com/criproxy/criproxy/internal/testing/untested"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// runWith runs a pod of a runtime handler with one container, as kubelet does.
func (n *node) runWith(handler, name, image string) *pod {
	n.Helper()
	p := &pod{config: testkit.PodConfig(name)}
	ran, err := n.RunPodSandbox(n.ctx(), &runtimeapi.RunPodSandboxRequest{Config: p.config, RuntimeHandler: handler})
	require.NoError(n, err)
	p.sandbox = ran.GetPodSandboxId()
	n.add(p, image)
	return p
}

// add pulls an image for a pod, and makes and starts a container of it.
func (n *node) add(p *pod, image string) (id string) {
	n.Helper()
	pulled, err := n.PullImage(n.ctx(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: image, Annotations: p.config.Annotations}, SandboxConfig: p.config})
	require.NoError(n, err)
	created, err := n.CreateContainer(n.ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: p.sandbox, SandboxConfig: p.config, Config: &runtimeapi.ContainerConfig{
		Metadata:    &runtimeapi.ContainerMetadata{Name: "c" + strings.Repeat("c", len(p.containers))},
		Image:       &runtimeapi.ImageSpec{Image: pulled.GetImageRef(), UserSpecifiedImage: image},
		Annotations: map[string]string{"io.kubernetes.container.hash": "5e1f"},
	}})
	require.NoError(n, err)
	_, err = n.StartContainer(n.ctx(), &runtimeapi.StartContainerRequest{ContainerId: created.GetContainerId()})
	require.NoError(n, err)
	p.containers = append(p.containers, created.GetContainerId())
	return created.GetContainerId()
}

// A criproxy behind another one is a runtime whose ids have prefixes.
func TestWhatACriproxyBehindAnotherListsCanBeReached(t *testing.T) {
	untested.TakesLong(t)
	for _, ids := range [][2]string{{config.PrefixIDs, config.PrefixIDs}, {config.PrefixIDs, config.NativeIDs}, {config.NativeIDs, config.PrefixIDs}} {
		for _, at := range []string{"its primary", "a.io", "its only one"} {
			t.Run("ids "+ids[0]+" over "+ids[1]+", "+at, func(t *testing.T) {
				t.Parallel()
				inner := newNode(t, func(c *config.Config) {
					c.IDs = ids[1]
					c.Backends[1].Handlers = map[string]string{"deep": "runc"}
				})
				outer := newNode(t, func(c *config.Config) {
					c.IDs = ids[0]
					behind := config.Backend{Address: inner.cfg.Listen}
					switch at {
					case "a.io":
						behind.Name, behind.Handlers = "a.io", map[string]string{"deep": "deep", "runc": "runc"}
						c.Backends = append(c.Backends, behind)
					case "its primary":
						c.Backends[0].Name = "c.io"
						c.Backends = append([]config.Backend{behind}, c.Backends...)
					default:
						c.Backends = []config.Backend{behind}
					}
				}, machineConfig{})
				pods := []*pod{outer.runWith("runc", "near", "near:1"), outer.runWith("deep", "deep", "deep:1")}
				assert.Len(t, inner.runtimes[0].Pods(), 1)
				assert.Len(t, inner.runtimes[1].Pods(), 1)
				outer.stop() // it loses its cache
				outer.cfg.StateDir += ".other"
				outer.start()

				listed := func(l listing) []string {
					items, _ := l.both(outer)
					return idsOf(items)
				}
				for _, p := range pods {
					require.Contains(t, listed(listPods(nil)), p.sandbox)
					require.Contains(t, listed(listContainers(nil)), p.containers[0])
					assert.Equal(t, []string{p.sandbox}, listed(listPods(&runtimeapi.PodSandboxFilter{Id: p.sandbox})))
					assert.Equal(t, p.containers, listed(listContainers(&runtimeapi.ContainerFilter{PodSandboxId: p.sandbox})))
					assert.Equal(t, p.containers, listed(listContainers(&runtimeapi.ContainerFilter{Id: p.containers[0]})))
					if ids[0] == config.PrefixIDs {
						// Up to fewer characters than any id has in common with another, the ends of prefixes among them.
						for i := 0; i < len(p.sandbox)-4; i += 1 + i/16*7 {
							assert.Contains(t, listed(listPods(&runtimeapi.PodSandboxFilter{Id: p.sandbox[:i]})), p.sandbox, p.sandbox[:i])
						}
					}
					got, err := outer.PodSandboxStatus(outer.ctx(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.sandbox})
					require.NoError(t, err)
					assert.Equal(t, p.sandbox, got.GetStatus().GetId())
					is, err := outer.ContainerStatus(outer.ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: p.containers[0]})
					require.NoError(t, err)
					images, err := outer.ListImages(outer.ctx(), &runtimeapi.ListImagesRequest{})
					require.NoError(t, err)
					prefix, _, _ := strings.Cut(is.GetStatus().GetImageId(), "sha256:")
					assert.Equal(t, "docker.io/library/"+p.config.GetMetadata().GetName()+":1", is.GetStatus().GetImage().GetImage())
					marked, err := outer.ContainerStatus(outer.ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: outer.add(p, prefix+"marked:1")})
					require.NoError(t, err)
					assert.Equal(t, prefix+"docker.io/library/marked:1", marked.GetStatus().GetImage().GetImage())
					assert.Len(t, marked.GetStatus().GetAnnotations(), 1, "the notes have been read")
					assert.True(t, slices.ContainsFunc(images.GetImages(), func(i *runtimeapi.Image) bool { return i.GetId() == is.GetStatus().GetImageId() }))

					_, err = outer.StopPodSandbox(outer.ctx(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.sandbox})
					require.NoError(t, err)
					_, err = outer.RemoveContainer(outer.ctx(), &runtimeapi.RemoveContainerRequest{ContainerId: p.containers[0]})
					require.NoError(t, err)
					_, err = outer.RemovePodSandbox(outer.ctx(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.sandbox})
					require.NoError(t, err)
					for _, id := range []string{is.GetStatus().GetImageId(), marked.GetStatus().GetImageId()} {
						_, err = outer.RemoveImage(outer.ctx(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: id}})
						require.NoError(t, err)
					}
				}
				for i := range 2 {
					assert.Empty(t, inner.runtimes[i].Pods(), "all has been done where it was meant")
					assert.Empty(t, inner.runtimes[i].Images())
				}
			})
		}
	}
}
