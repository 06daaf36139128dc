package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/hook/plugin"
	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/proxy"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// hooked is a criproxy in front of both runtimes that calls the plugins of a folder.
type hooked struct {
	*bench
	*proxy.Proxy
	dir, folder string // of plugins: their sockets, and their registrations
}

// withHooks starts a proxy that ends with the test.
func withHooks(t testing.TB, b *bench) *hooked {
	t.Helper()
	h := &hooked{bench: b, dir: folder(t)}
	h.folder = filepath.Join(h.dir, "hookserver.d")
	h.Proxy = testbed.NewProxy(t, backends(b.one.Socket(), b.two.Socket()), "-hooks", h.folder)
	require.NoError(t, waitForAll(t.Context(), h.Proxy))
	return h
}

// restart starts another process in place of the proxy.
func (h *hooked) restart(t testing.TB) {
	t.Helper()
	require.NoError(t, h.Terminate(t.Context()))
	require.NoError(t, h.Start(t.Context()))
	require.NoError(t, waitForAll(t.Context(), h.Proxy))
}

// pluginState is the state of a plugin, from the admin socket.
type pluginState struct {
	Name, State, Policy, Error string
	Points                     []pointState
}

type pointState struct {
	Name                             string
	Calls, Failed, TimedOut, Refused int
	Changed                          map[string]int
	LastError                        string
}

// state returns the state of the plugin of a file; it is empty if criproxy does not know the plugin.
func (h *hooked) state(t testing.TB, name string) pluginState {
	t.Helper()
	var all struct{ Plugins []pluginState }
	require.NoError(t, proxy.AskJSON(t.Context(), h.Admin(), "/hooks", &all))
	for _, p := range all.Plugins {
		if p.Name == name+".json" {
			return p
		}
	}
	return pluginState{}
}

// until waits until the plugin of a file is in a state.
func (h *hooked) until(t testing.TB, name, want string) {
	t.Helper()
	eventually(t, func() error {
		if is := h.state(t, name); is.State != want {
			return fmt.Errorf("plugin %s is %+v", name, is)
		}
		return nil
	})
}

// plug starts a plugin that ends with the test, and returns when criproxy calls it.
func (h *hooked) plug(t testing.TB, p plugin.Plugin) {
	t.Helper()
	p.Folder, p.Socket = h.folder, filepath.Join(h.dir, p.Name+".sock")
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-ended)
	})
	h.until(t, p.Name, "ready")
}

// file registers a plugin by its file alone.
func (h *hooked) file(t testing.TB, name, socket, policy, points string) {
	t.Helper()
	text := fmt.Sprintf(`{"remote-endpoint": %q, "failure-policy": %q, "runtime-hooks": [%s], "timeout": "500ms"}`, socket, policy, points)
	require.NoError(t, os.MkdirAll(h.folder, 0o755))
	require.NoError(t, host.WriteWhole(filepath.Join(h.folder, name+".json"), []byte(text)))
}

// made describes a container, according to its runtime: runc's specification, and its process.
type made struct {
	Pid         int `json:"pid"`
	RuntimeSpec struct {
		Annotations map[string]string `json:"annotations"`
		Process     struct {
			Env []string `json:"env"`
		} `json:"process"`
		Linux struct {
			CgroupsPath string `json:"cgroupsPath"`
			Resources   struct {
				CPU struct {
					Shares uint64 `json:"shares"`
					Quota  int64  `json:"quota"`
					Cpus   string `json:"cpus"`
				} `json:"cpu"`
			} `json:"resources"`
		} `json:"linux"`
	} `json:"runtimeSpec"`
}

func madeOf(t testing.TB, s *side, back string) made {
	t.Helper()
	resp, err := s.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: back, Verbose: true})
	require.NoError(t, err)
	return madeIn(t, resp.Info)
}

// sandboxPidOf returns the process id of a pod's own container, as its runtime sees it.
func sandboxPidOf(t testing.TB, s *side, back string) int {
	t.Helper()
	resp, err := s.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: back, Verbose: true})
	require.NoError(t, err)
	return madeIn(t, resp.Info).Pid
}

func madeIn(t testing.TB, verbose map[string]string) (m made) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(verbose["info"]), &m))
	require.Positive(t, m.Pid)
	return m
}

// runHooked creates a pod with a container through the kubelet's client, as the kubelet does, and returns the container.
// Both are removed when the test ends.
func runHooked(t *testing.T, h *hooked, s *side, config *runtimeapi.PodSandboxConfig, edit func(*runtimeapi.ContainerConfig)) (internalapi.RuntimeService, string) {
	t.Helper()
	runtime, images := kubelet(t, h.Socket())
	spec := &runtimeapi.ImageSpec{Image: s.image(s.app()), Annotations: config.Annotations}
	image, err := images.PullImage(t.Context(), spec, nil, config)
	require.NoError(t, err)
	pod, err := runtime.RunPodSandbox(t.Context(), config, "")
	require.NoError(t, err)
	t.Cleanup(func() { s.destroy(t, s.bare(t, pod)) })
	container := runtimes.ContainerConfig("app", image)
	if edit != nil {
		edit(container)
	}
	id, err := runtime.CreateContainer(t.Context(), pod, container, config)
	require.NoError(t, err)
	require.NoError(t, runtime.StartContainer(t.Context(), id))
	return runtime, id
}

// destroy removes a pod without the proxy, which may not work.
func (s *side) destroy(t testing.TB, back string) {
	_, err := s.StopPodSandbox(context.Background(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: back})
	assert.NoError(t, err)
	_, err = s.RemovePodSandbox(context.Background(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: back})
	assert.NoError(t, err)
}

// eachHooked runs a test once for each runtime, with a proxy that calls plugins.
func eachHooked(t *testing.T, test func(t *testing.T, h *hooked, s *side)) {
	b := start(t)
	for _, s := range b.sides() {
		t.Run(s.Containerd.Version, func(t *testing.T) { test(t, withHooks(t, b), s) })
	}
}

func TestPluginChangesReachTheRunningContainer(t *testing.T) {
	eachHooked(t, func(t *testing.T, h *hooked, s *side) {
		config := s.choose(s.PodConfig("hooked"))
		parent := s.CgroupParent() + "/moved-" + config.Metadata.Uid
		h.plug(t, plugin.Plugin{Name: "qos", Fail: true,
			PreRunPodSandbox: func(_ context.Context, p *plugin.Pod) (*plugin.PodAnswer, error) {
				a := plugin.EchoPod(p)
				a.Annotations["example.org/qos"], a.Labels["qos"] = "batch", "batch"
				a.CgroupParent = parent
				return a, nil
			},
			PreCreateContainer: func(_ context.Context, c *plugin.Container) (*plugin.ContainerAnswer, error) {
				a := plugin.Echo(c)
				a.ContainerAnnotations["example.org/qos"] = c.GetPodLabels()["qos"]
				a.ContainerEnvs["QOS"], a.ContainerEnvs["CHANGED"] = c.GetPodAnnotations()["example.org/qos"], "by the plugin"
				a.ContainerResources.CpuShares, a.ContainerResources.CpusetCpus = 77, "0"
				a.PodCgroupParent = parent
				return a, nil
			},
			PreUpdateContainerResources: func(_ context.Context, c *plugin.Container) (*plugin.ContainerAnswer, error) {
				a := plugin.Echo(c)
				a.ContainerResources.CpuShares = 33
				return a, nil
			},
		})
		runtime, id := runHooked(t, h, s, config, func(c *runtimeapi.ContainerConfig) {
			c.Envs = []*runtimeapi.KeyValue{{Key: "Z", Value: []byte("last=1")}, {Key: "CHANGED", Value: []byte("no")}, {Key: "A", Value: []byte{0xff, 'x'}}}
			c.Linux.Resources = &runtimeapi.LinuxContainerResources{CpuShares: 512, CpuPeriod: 100000, CpuQuota: 50000}
		})
		back := s.bare(t, id)

		pods := s.pods(t)
		pod := pods[s.containers(t)[back].PodSandboxId]
		wantAnnotations := maps.Clone(config.Annotations)
		wantAnnotations["example.org/qos"] = "batch"
		assert.Equal(t, wantAnnotations, pod.Annotations)
		assert.Equal(t, "batch", pod.Labels["qos"])
		assert.Contains(t, cgroupOf(t, sandboxPidOf(t, s, pod.Id)), parent+"/", "the pod is in the cgroup that the plugin chose")

		m := madeOf(t, s, back)
		spec := m.RuntimeSpec
		assert.Equal(t, "batch", spec.Annotations["example.org/qos"])
		assert.EqualValues(t, 77, spec.Linux.Resources.CPU.Shares)
		assert.EqualValues(t, 50000, spec.Linux.Resources.CPU.Quota, "what the plugin did not change is as the kubelet wanted it")
		assert.Equal(t, "0", spec.Linux.Resources.CPU.Cpus)
		assert.Equal(t, parent+"/"+back, spec.Linux.CgroupsPath)
		wanted := regexp.MustCompile("Z=last=1\x00CHANGED=by the plugin\x00A=[^\x00]+x\x00QOS=batch\x00")
		eventually(t, func() error { // runc's init must have become the program
			environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", m.Pid))
			if err == nil && !wanted.Match(environ) {
				err = fmt.Errorf("want %s, in order; what is no text passes, as far as runc can take it: %q", wanted, environ)
			}
			return err
		})
		if !cgroupV2(t) {
			assert.Equal(t, "77\n", cgroupFile(t, m.Pid, "cpu", "cpu.shares", ""))
		}
		assert.Equal(t, "0\n", cgroupFile(t, m.Pid, "cpuset", "cpuset.cpus", "cpuset.cpus"))

		const limit = 64 << 20
		require.NoError(t, runtime.UpdateContainerResources(t.Context(), id, &runtimeapi.ContainerResources{
			Linux: &runtimeapi.LinuxContainerResources{CpuShares: 256, MemoryLimitInBytes: limit}}))
		status, err := s.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: back})
		require.NoError(t, err)
		now := status.Status
		assert.EqualValues(t, 33, now.Resources.Linux.CpuShares, "the plugin's, not the kubelet's")
		assert.EqualValues(t, limit, now.Resources.Linux.MemoryLimitInBytes)
		if !cgroupV2(t) {
			assert.Equal(t, "33\n", cgroupFile(t, m.Pid, "cpu", "cpu.shares", ""))
		}
		assert.Equal(t, fmt.Sprintln(limit), memoryLimit(t, m.Pid))

		out, err := host.Command(t.Context(), h.Program, "hooks", "-admin", h.Admin()).CombinedOutput()
		require.NoError(t, err, string(out))
		assert.Contains(t, string(out), "qos.json  ready  "+h.dir+"/qos.sock  policy Fail, timeout 2s\n")

		// The status says what it was.
		data, err := os.ReadFile(h.LogFile())
		require.NoError(t, err)
		log := string(data)
		assert.Contains(t, log, `"Plugin changed a call" plugin="qos.json" point="PreCreateContainer"`)
		assert.Contains(t, log, `container_resources.cpu_shares: \"512\" -> \"77\"`)
		assert.NotContains(t, log, "by the plugin", "environments are secret")
		points := map[string]pointState{}
		for _, p := range h.state(t, "qos").Points {
			points[p.Name] = p
		}
		assert.EqualValues(t, 1, points["PreUpdateContainerResources"].Calls)
		assert.EqualValues(t, 1, points["PreUpdateContainerResources"].Changed["container_resources.cpu_shares"])
	})
}

// About containers from before criproxy, containerd reports everything that plugins get about others.
func TestRestartedPluginsLearnHowContainersWereMade(t *testing.T) {
	eachHooked(t, func(t *testing.T, h *hooked, s *side) {
		told := make(chan *plugin.Container, 10)
		look := func(_ context.Context, c *plugin.Container) (*plugin.ContainerAnswer, error) {
			told <- c
			return nil, nil
		}
		h.plug(t, plugin.Plugin{Name: "look", Fail: true, PreStartContainer: look, PreUpdateContainerResources: look})
		config := s.choose(s.PodConfig("kept"))
		config.Annotations["note"] = "pod's"
		config.Metadata.Attempt = 3
		config.Linux.Overhead = &runtimeapi.LinuxContainerResources{CpuShares: 10}
		config.Linux.Resources = &runtimeapi.LinuxContainerResources{CpuShares: 20}
		_, id := runHooked(t, h, s, config, func(c *runtimeapi.ContainerConfig) {
			c.Annotations["note"] = "container's"
			c.Envs = []*runtimeapi.KeyValue{{Key: "Z", Value: []byte("1=2")}, {Key: "A", Value: []byte("YWJj")}}
			c.Linux.Resources = &runtimeapi.LinuxContainerResources{CpuShares: 512, CpuPeriod: 100000, CpuQuota: 50000, MemoryLimitInBytes: 64 << 20, MemorySwapLimitInBytes: 64 << 20}
		})
		before := <-told
		require.Equal(t, s.bare(t, id), before.GetContainerMeta().GetId())

		h.restart(t)
		h.until(t, "look", "ready")
		runtime, _ := kubelet(t, h.Socket())
		require.NoError(t, runtime.UpdateContainerResources(t.Context(), id, &runtimeapi.ContainerResources{Linux: &runtimeapi.LinuxContainerResources{CpuShares: 300}}))
		after := <-told
		before.ContainerResources.CpuShares = 300
		assert.True(t, proto.Equal(before, after), "before %v\nafter  %v", before, after)
	})
}
