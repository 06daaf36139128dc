package gvisor

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

func TestMain(m *testing.M) { testbed.Main(m, append(build.ForContainers(), build.GVisor)...) }

// A RuntimeClass's handler sends a pod to the second runtime and into gVisor there. A pod of the same runtime without it, and
// one of the primary's, have the machine's kernel.
func TestAPodInGVisorRunsBesidePodsOfRunc(t *testing.T) {
	reg := testbed.NewRegistry(t)
	one := testbed.NewContainerd(t, reg, runtimes.Config{Name: "one", Version: "1.7"})
	two := testbed.NewContainerd(t, reg, runtimes.Config{Name: "two", GVisor: true})
	for _, ids := range []string{"prefix", "native"} {
		t.Run(ids, func(t *testing.T) {
			p := testbed.NewProxy(t, fmt.Sprintf("ids: %s\nbackends:\n- address: %s\n- {name: two.test, address: %s, handlers: {gvisor: gvisor, plain: runc}}\n", ids, one.Socket(), two.Socket()))
			runtime, images := testbed.NewClients(t, p.Endpoint())
			own, err := os.ReadFile("/proc/version")
			require.NoError(t, err)
			for _, test := range []struct {
				handler string
				on      *runtimes.Containerd
				shared  bool // the pod uses the machine's kernel
			}{{"", one, true}, {"plain", two, true}, {"gvisor", two, false}} {
				pod := test.on.PodConfig("in-" + test.handler + ids)
				id := run(t, runtime, images, pod, test.handler, reg.Image("testbed/app:1"))
				out, _, err := runtime.ExecSync(t.Context(), id, []string{"/bin/app", "file", "/proc/version"}, 20*time.Second)
				require.NoError(t, err)
				assert.NotEmpty(t, out)
				assert.Equal(t, test.shared, string(own) == string(out), "handler %q: the kernel is %s", test.handler, out)
				status, err := runtime.ContainerStatus(t.Context(), id, false)
				require.NoError(t, err)
				assert.Equal(t, runtimeapi.ContainerState_CONTAINER_RUNNING, status.Status.State)
			}
			pods, err := runtime.ListPodSandbox(t.Context(), nil)
			require.NoError(t, err)
			handlers := map[string]int{}
			for _, pod := range pods {
				handlers[pod.RuntimeHandler]++
				require.NoError(t, runtime.StopPodSandbox(t.Context(), pod.Id))
				require.NoError(t, runtime.RemovePodSandbox(t.Context(), pod.Id))
			}
			assert.Equal(t, map[string]int{"": 1, "plain": 1, "gvisor": 1}, handlers, "they are listed with the handlers that they were made with")
		})
	}
}

// run makes a pod of a handler with one container, as kubelet does, and returns the container.
func run(t *testing.T, runtime internalapi.RuntimeService, images internalapi.ImageManagerService, pod *runtimeapi.PodSandboxConfig, handler, image string) string {
	t.Helper()
	podID, err := runtime.RunPodSandbox(t.Context(), pod, handler)
	require.NoError(t, err, handler)
	_, err = images.PullImage(t.Context(), &runtimeapi.ImageSpec{Image: image, RuntimeHandler: handler}, nil, pod)
	require.NoError(t, err, handler)
	require.NoError(t, os.MkdirAll(filepath.Join(pod.LogDirectory, "app"), 0o755))
	config := runtimes.ContainerConfig("app", image)
	id, err := runtime.CreateContainer(t.Context(), podID, config, pod)
	require.NoError(t, err, handler)
	require.NoError(t, runtime.StartContainer(t.Context(), id), handler)
	return id
}
