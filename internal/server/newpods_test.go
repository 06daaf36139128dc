package server

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// newPodsTo reloads the configuration with another runtime for new pods.
func (n *node) newPodsTo(name string) {
	n.Helper()
	cfg := *n.cfg
	cfg.NewPodsTo = name
	require.NoError(n, Check(&cfg))
	require.NoError(n, reload(n.proxy, &cfg))
}

// sandbox makes a sandbox of a pod, and returns its native id and its runtime.
func (n *node) sandbox(config *runtimeapi.PodSandboxConfig, handler string) (id string, runtime int) {
	n.Helper()
	ran, err := n.RunPodSandbox(n.ctx(), &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: handler})
	require.NoError(n, err)
	return n.whose(ran.GetPodSandboxId())
}

// whose returns which of two runtimes has made a pod.
func (n *node) whose(id string) (string, int) {
	n.Helper()
	bare := strings.TrimPrefix(id, n.cfg.Backends[1].Name+"__")
	for i, m := range n.runtimes {
		for _, p := range m.Pods() {
			if p.GetId() == bare {
				return id, i
			}
		}
	}
	require.Fail(n, "no runtime has it", id)
	return "", 0
}

// pulls makes kubelet's two calls about the image of a pod, and returns the runtime that has the image now.
func (n *node) pulls(config *runtimeapi.PodSandboxConfig, image string) int {
	n.Helper()
	spec := &runtimeapi.ImageSpec{Image: image, Annotations: config.Annotations}
	is, err := n.ImageStatus(n.ctx(), &runtimeapi.ImageStatusRequest{Image: spec})
	require.NoError(n, err)
	require.Nil(n, is.GetImage(), "it is not there, or not where the pod is")
	pulled, err := n.PullImage(n.ctx(), &runtimeapi.PullImageRequest{Image: spec, SandboxConfig: config})
	require.NoError(n, err)
	is, err = n.ImageStatus(n.ctx(), &runtimeapi.ImageStatusRequest{Image: spec})
	require.NoError(n, err)
	require.Equal(n, pulled.GetImageRef(), is.GetImage().GetId())
	if strings.HasPrefix(pulled.GetImageRef(), n.cfg.Backends[1].Name+"/") {
		return 1
	}
	return 0
}

func seen(name string) *runtimeapi.PodSandboxConfig {
	config := testkit.PodConfig(name)
	config.Annotations["kubernetes.io/config.seen"] = "2026-11-21T15:00:00.000000001Z " + name
	return config
}

func TestNewPodsGoToOneRuntimeWhileTheOtherIsDrained(t *testing.T) {
	t.Parallel()
	for _, ids := range []string{config.PrefixIDs, config.NativeIDs} {
		t.Run(ids, func(t *testing.T) {
			n := newNode(t, func(c *config.Config) { c.IDs = ids }).known()
			old := seen("old")
			oldSandbox, at := n.sandbox(old, "")
			require.Equal(t, 0, at)
			require.Equal(t, 0, n.pulls(old, "docker.io/library/old:1"))

			n.newPodsTo("beta.io")
			fresh := seen("fresh")
			sandbox, at := n.sandbox(fresh, "")
			assert.Equal(t, 1, at, "a pod without an annotation or handler that says where it goes")
			assert.Equal(t, 1, n.pulls(fresh, "docker.io/library/fresh:1"), "its image goes where it is")
			_, at = n.sandbox(seen("classy"), "runc")
			assert.Equal(t, 0, at, "a handler is the primary's, as long as no other runtime has it")

			create := func(sandbox string, config *runtimeapi.PodSandboxConfig, image string) string {
				made, err := n.CreateContainer(n.ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox, SandboxConfig: config,
					Config: &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Image: &runtimeapi.ImageSpec{Image: image}}})
				require.NoError(t, err)
				return made.GetContainerId()
			}
			create(sandbox, fresh, n.image(1, "docker.io/library/fresh:1"))
			create(oldSandbox, old, "docker.io/library/old:1")
			assert.Equal(t, 0, n.pulls(old, "docker.io/library/more:1"), "what is there stays where it is")

			// kubelet makes a new sandbox of the same pod, as after a boot, while the old one still exists.
			again := proto.CloneOf(old)
			again.Metadata.Attempt = 1
			_, at = n.sandbox(again, "")
			assert.Equal(t, 1, at)
			assert.Equal(t, 1, n.pulls(again, "docker.io/library/again:1"), "the pod has moved, not its old sandbox")

			if ids == config.NativeIDs { // the drained runtime leaves, and the other one is the only one
				cfg := *n.cfg
				cfg.Backends = []config.Backend{{Address: n.runtimes[1].Path}}
				require.NoError(t, Check(&cfg))
				require.NoError(t, reload(n.proxy, &cfg))
				pods, err := n.ListPodSandbox(n.ctx(), &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{Id: sandbox}})
				require.NoError(t, err)
				assert.Len(t, pods.GetItems(), 1, "its pods have the ids that they had")
				return
			}
			n.newPodsTo("")
			_, at = n.sandbox(seen("last"), "")
			assert.Equal(t, 0, at, "and back")
		})
	}
}

func TestNewPodsGoToARuntimeThatThereIs(t *testing.T) {
	t.Parallel()
	c := &config.Config{NewPodsTo: "beta.oi", Backends: []config.Backend{{Address: "/run/0.sock"}, {Name: "beta.io", Address: "/run/1.sock"}}}
	assert.EqualError(t, Check(c), `newPodsTo: there is no runtime "beta.oi" (did you mean "beta.io"?)`)
}
