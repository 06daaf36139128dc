package integration

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// A plugin with Fail that runs in a pod does not prevent its own pod from coming back: the process at its socket tells
// criproxy which pod serves it, also after a restart of criproxy and with any uid of the pod.
func TestAPluginInAPodCanComeBack(t *testing.T) {
	eachHooked(t, func(t *testing.T, h *hooked, s *side) {
		source, err := build.SourceDir()
		require.NoError(t, err)
		dir := folder(t)
		program := filepath.Join(dir, "example")
		build := host.CommandWithin(t.Context(), 10*time.Minute, "go", "build", "-buildvcs=false", "-o", program, "./hook/plugin/example")
		build.Dir, build.Env = filepath.Dir(source), append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
		out, err := build.CombinedOutput()
		require.NoError(t, err, string(out))

		runtime, images := kubelet(t, h.Socket())
		run := func(name string) (container, pod string, config *runtimeapi.PodSandboxConfig, err error) {
			config = s.choose(s.PodConfig(name))
			config.Annotations["example.org/priority"] = "high"
			spec := &runtimeapi.ImageSpec{Image: s.image(s.app()), Annotations: config.Annotations}
			image, err := images.PullImage(t.Context(), spec, nil, config)
			require.NoError(t, err)
			if pod, err = runtime.RunPodSandbox(t.Context(), config, ""); err != nil {
				return "", "", nil, err
			}
			t.Cleanup(func() { s.destroy(t, s.bare(t, pod)) })
			c := runtimes.ContainerConfig("app", image)
			if name == "plugin" {
				c.Command = []string{program, dir}
				c.Mounts = []*runtimeapi.Mount{{HostPath: dir, ContainerPath: dir}}
			}
			if container, err = runtime.CreateContainer(t.Context(), pod, c, config); err != nil {
				return "", pod, config, err
			}
			return container, pod, config, runtime.StartContainer(t.Context(), container)
		}
		server, _, _, err := run("plugin")
		require.NoError(t, err)
		h.file(t, "priority", filepath.Join(dir, "priority.sock"), "Fail", `"PreCreateContainer"`)
		h.until(t, "priority", "ready")
		fileWith(t, filepath.Join(h.Dir, "state", "hook-servers.json"), `"name": "plugin"`)

		require.NoError(t, runtime.StopContainer(t.Context(), server, 0))
		h.until(t, "priority", "down")
		h.restart(t)
		runtime, images = kubelet(t, h.Socket())
		h.until(t, "priority", "down")
		_, _, _, err = run("another")
		assert.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
		assert.ErrorContains(t, err, "refused at PreCreateContainer: plugin priority.json cannot be asked")

		_, _, _, err = run("plugin")
		require.NoError(t, err, "it serves the plugin")
		h.until(t, "priority", "ready")
		id, _, _, err := run("another")
		require.NoError(t, err)
		assert.EqualValues(t, 8192, madeOf(t, s, s.bare(t, id)).RuntimeSpec.Linux.Resources.CPU.Shares)
	})
}
