package testbed_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

func TestMain(m *testing.M) {
	if os.Getenv(hangVariable) == "criproxy" {
		forgotten()
	}
	if os.Getenv(killedVariable) != "" {
		host.Own()
		os.Exit(m.Run()) // without a turn: the test that kills it has that
	}
	testbed.Main(m, append(build.ForContainers(), build.Kubelet)...)
}

// versions are what each test that says something about any containerd runs on.
var versions = []string{"1.7", "2.4"}

// onEach runs a test once for each version, with an instance of its own.
func onEach(t *testing.T, test func(t *testing.T, b *bench)) {
	for _, version := range versions {
		t.Run(version, func(t *testing.T) { test(t, start(t, runtimes.Config{Version: version})) })
	}
}

// A bench is one instance with its registry and clients.
type bench struct {
	*runtimes.Containerd
	reg     *runtimes.Registry
	runtime internalapi.RuntimeService
	images  internalapi.ImageManagerService
}

// start starts an instance that is destroyed with the test, which fails if anything is left of it.
func start(t *testing.T, config runtimes.Config) *bench {
	t.Helper()
	reg := testbed.NewRegistry(t)
	rt := testbed.NewContainerd(t, reg, config)
	runtime, images := testbed.NewClients(t, rt.Endpoint())
	return &bench{Containerd: rt, reg: reg, runtime: runtime, images: images}
}

// pull pulls an image of the bench's registry.
func (b *bench) pull(t *testing.T, image string) {
	t.Helper()
	_, err := b.images.PullImage(t.Context(), &runtimeapi.ImageSpec{Image: b.reg.Image(image)}, nil, nil)
	require.NoError(t, err)
}

// pod runs a pod.
func (b *bench) pod(t *testing.T, config *runtimeapi.PodSandboxConfig, handler string) string {
	t.Helper()
	id, err := b.runtime.RunPodSandbox(t.Context(), config, handler)
	require.NoError(t, err)
	return id
}

// container starts a container of testbed/app:1 in a pod.
func (b *bench) container(t *testing.T, podID string, pod *runtimeapi.PodSandboxConfig, config *runtimeapi.ContainerConfig) string {
	t.Helper()
	b.pull(t, "testbed/app:1")
	id, err := b.runtime.CreateContainer(t.Context(), podID, config, pod)
	require.NoError(t, err)
	require.NoError(t, b.runtime.StartContainer(t.Context(), id))
	return id
}

// run starts a pod on the bridge with one container that runs the test program with args.
func (b *bench) run(t *testing.T, name string, args ...string) (podID, id string) {
	t.Helper()
	pod := b.PodConfig(name)
	podID = b.pod(t, pod, "")
	id = b.container(t, podID, pod, runtimes.ContainerConfig("app", b.reg.Image("testbed/app:1"), args...))
	return podID, id
}

func (b *bench) status(t *testing.T, id string) *runtimeapi.ContainerStatus {
	t.Helper()
	resp, err := b.runtime.ContainerStatus(t.Context(), id, false)
	require.NoError(t, err)
	return resp.Status
}
