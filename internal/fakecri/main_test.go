package fakecri_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/fakecri"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A client holds a runtime on a real socket, and cri-api's own clients for it.
type client struct {
	t  *testing.T
	rt *fakecri.Runtime
	runtimeapi.RuntimeServiceClient
	runtimeapi.ImageServiceClient
}

// start serves a runtime until the test ends.
func start(t *testing.T) *client {
	t.Helper()
	m := testkit.NewMachine(t, "", filepath.Join(testkit.SocketDir(t), "cri.sock"), fakecri.Config{})
	m.Start()
	cc := testkit.Dialed(t, m.Path)
	return &client{t, m.Runtime, runtimeapi.NewRuntimeServiceClient(cc), runtimeapi.NewImageServiceClient(cc)}
}

func containerConfig(name, image string) *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name},
		Image:    &runtimeapi.ImageSpec{Image: image, UserSpecifiedImage: image},
		Labels:   map[string]string{"container": name},
		LogPath:  name + "/0.log",
	}
}

// run makes a pod and returns its id.
func (c *client) run(name string) string {
	c.t.Helper()
	reply, err := c.RunPodSandbox(c.t.Context(), &runtimeapi.RunPodSandboxRequest{Config: testkit.PodConfig(name)})
	require.NoError(c.t, err)
	return reply.GetPodSandboxId()
}

// create makes a container of the image busybox in a pod that run made.
func (c *client) create(podID, pod, name string) string {
	c.t.Helper()
	c.pull("busybox")
	reply, err := c.CreateContainer(c.t.Context(), &runtimeapi.CreateContainerRequest{
		PodSandboxId: podID, Config: containerConfig(name, "busybox"), SandboxConfig: testkit.PodConfig(pod),
	})
	require.NoError(c.t, err)
	return reply.GetContainerId()
}

func (c *client) begin(containerID string) string {
	c.t.Helper()
	_, err := c.StartContainer(c.t.Context(), &runtimeapi.StartContainerRequest{ContainerId: containerID})
	require.NoError(c.t, err)
	return containerID
}

// running makes a pod with a container that runs.
func (c *client) running(pod string) (podID, containerID string) {
	c.t.Helper()
	podID = c.run(pod)
	return podID, c.begin(c.create(podID, pod, "main"))
}

func (c *client) pull(name string) string {
	c.t.Helper()
	reply, err := c.PullImage(c.t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: name}})
	require.NoError(c.t, err)
	return reply.GetImageRef()
}

func (c *client) containerStatus(id string) *runtimeapi.ContainerStatus {
	c.t.Helper()
	reply, err := c.ContainerStatus(c.t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
	require.NoError(c.t, err)
	return reply.GetStatus()
}
