package fakecri_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/fakecri"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A client holds a runtime on a real socket, and cri-api's own clients for it.
type client struct {
	t  testing.TB
	rt *fakecri.Runtime
	cc *grpc.ClientConn
	runtimeapi.RuntimeServiceClient
	runtimeapi.ImageServiceClient
}

// start serves a runtime until the test ends.
func start(t testing.TB, cfg fakecri.Config) *client {
	t.Helper()
	rt := fakecri.New(cfg)
	path, stop := serve(t, rt)
	cc := connect(t, path)
	t.Cleanup(func() {
		cc.Close() //nolint:errcheck // an error changes nothing
		assert.NoError(t, stop())
	})
	return &client{t, rt, cc, runtimeapi.NewRuntimeServiceClient(cc), runtimeapi.NewImageServiceClient(cc)}
}

// serve returns the socket of rt, and a function that ends the server.
func serve(t testing.TB, rt *fakecri.Runtime) (path string, stop func() error) {
	t.Helper()
	path = filepath.Join(dir(t), "cri.sock")
	l, err := fakecri.Listen(path)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- rt.ServeOn(ctx, l) }()
	return path, func() error {
		cancel()
		return <-done
	}
}

// dir returns a folder whose path is short enough for sockets.
func dir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "fakecri")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) }) //nolint:errcheck // an error changes nothing
	return dir
}

func connect(t testing.TB, path string) *grpc.ClientConn {
	t.Helper()
	cc, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	require.NoError(t, err)
	return cc
}

func podConfig(name string) *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: "uid-" + name},
		LogDirectory: "/var/log/pods/" + name,
		Labels:       map[string]string{"pod": name},
		Annotations:  map[string]string{"note": "of " + name},
	}
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
	reply, err := c.RunPodSandbox(c.t.Context(), &runtimeapi.RunPodSandboxRequest{Config: podConfig(name)})
	require.NoError(c.t, err)
	return reply.GetPodSandboxId()
}

// create makes a container of the image busybox in a pod that run made.
func (c *client) create(podID, pod, name string) string {
	c.t.Helper()
	c.pull("busybox")
	reply, err := c.CreateContainer(c.t.Context(), &runtimeapi.CreateContainerRequest{
		PodSandboxId: podID, Config: containerConfig(name, "busybox"), SandboxConfig: podConfig(pod),
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

func assertCode(t testing.TB, want codes.Code, err error) {
	t.Helper()
	assert.Equal(t, want.String(), status.Code(err).String(), "%v", err)
}
