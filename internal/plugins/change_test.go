package plugins_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/hook/plugin"
	"github.com/criproxy/criproxy/internal/plugins"
)

// echo is a plugin that is asked at every point and changes nothing.
func echo(name string) plugin.Plugin {
	pod := func(_ context.Context, p *plugin.Pod) (*plugin.PodAnswer, error) { return plugin.EchoPod(p), nil }
	container := func(_ context.Context, c *plugin.Container) (*plugin.ContainerAnswer, error) {
		return plugin.Echo(c), nil
	}
	return plugin.Plugin{
		Name: name, Fail: true,
		PreRunPodSandbox: pod, PostStopPodSandbox: pod, PreUpdatePodSandboxResources: pod,
		PostUpdatePodSandboxResources: pod, PostRemovePodSandbox: pod,
		PreCreateContainer: container, PreStartContainer: container, PostStartContainer: container,
		PostStopContainer: container, PreUpdateContainerResources: container, PostRemoveContainer: container,
	}
}

// Bytes that no plugin changes stay as they are, in whatever odd form they came.
func TestAPluginThatOnlyEchoesChangesNoByte(t *testing.T) {
	w := newWorld(t)
	w.plug(echo("echo"))
	odd := []byte{0xfa, 0xff, 0x07, 0x03, 'n', 'e', 'w'} // field 16383, which the schema lacks
	pod := podConfig("web")
	pod.ProtoReflect().SetUnknown(odd)
	send := func(method string, m proto.Message) *codec.Frame {
		t.Helper()
		// Maps have no order, and a decoder merges a field in two pieces.
		in, err := proto.Marshal(m)
		require.NoError(t, err)
		in = append(append(in, odd...), in...)
		reply := &codec.Frame{}
		require.NoError(t, w.plugins.Around(w.wire).Invoke(w.ctx(), "/runtime.v1.RuntimeService/"+method, codec.NewFrame(in), reply))
		got, n := w.wire.last(method)
		require.NotZero(t, n)
		assert.Equal(t, in, got, method)
		return reply
	}
	var ran runtimeapi.RunPodSandboxResponse
	require.NoError(t, proto.Unmarshal(send("RunPodSandbox", &runtimeapi.RunPodSandboxRequest{Config: pod}).Bytes(), &ran))
	_, err := w.images.PullImage(w.ctx(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: "busybox"}})
	require.NoError(t, err)
	config := containerConfig()
	config.Envs = append(config.Envs, &runtimeapi.KeyValue{Key: "A", Value: []byte("twice")}, &runtimeapi.KeyValue{Key: "bin", Value: []byte{0xff}})
	var made runtimeapi.CreateContainerResponse
	require.NoError(t, proto.Unmarshal(send("CreateContainer", &runtimeapi.CreateContainerRequest{PodSandboxId: ran.PodSandboxId, Config: config, SandboxConfig: pod}).Bytes(), &made))
	send("StartContainer", &runtimeapi.StartContainerRequest{ContainerId: made.ContainerId})
	send("UpdateContainerResources", &runtimeapi.UpdateContainerResourcesRequest{ContainerId: made.ContainerId, Linux: &runtimeapi.LinuxContainerResources{CpuShares: 7}})
	send("UpdatePodSandboxResources", &runtimeapi.UpdatePodSandboxResourcesRequest{PodSandboxId: ran.PodSandboxId, Resources: &runtimeapi.LinuxContainerResources{CpuShares: 9}})
	send("StopContainer", &runtimeapi.StopContainerRequest{ContainerId: made.ContainerId})
	send("RemoveContainer", &runtimeapi.RemoveContainerRequest{ContainerId: made.ContainerId})
	send("StopPodSandbox", &runtimeapi.StopPodSandboxRequest{PodSandboxId: ran.PodSandboxId})
	send("RemovePodSandbox", &runtimeapi.RemovePodSandboxRequest{PodSandboxId: ran.PodSandboxId})

	asked := map[string]bool{}
	for _, e := range happened[plugins.Asked](w) {
		asked[e.Point] = true
		assert.NoError(t, e.Err, e.Point)
		assert.Empty(t, e.Changes, e.Point)
	}
	assert.Len(t, asked, 11, "it was asked at every point: %v", asked)
	assert.Zero(t, w.plugins.State().Known["sandbox"]+w.plugins.State().Known["container"], "what was removed is forgotten")
}

func TestWhatAPluginChangesReachesTheRuntime(t *testing.T) {
	w := newWorld(t)
	w.plug(plugin.Plugin{Name: "change",
		PreRunPodSandbox: func(_ context.Context, p *plugin.Pod) (*plugin.PodAnswer, error) {
			a := plugin.EchoPod(p)
			a.Annotations["added"], a.Labels["app"], a.CgroupParent = "yes", "other", "/offline"
			a.Resources.CpuShares = 99 // has no effect, as in KoordRuntimeProxy
			return a, nil
		},
		PreCreateContainer: func(_ context.Context, c *plugin.Container) (*plugin.ContainerAnswer, error) {
			a := plugin.Echo(c)
			a.ContainerAnnotations["added"] = "yes"
			a.ContainerEnvs["NEW"], a.ContainerEnvs["A"] = "n", "changed"
			delete(a.ContainerEnvs, "M")
			a.PodCgroupParent = "/offline"
			r := a.ContainerResources
			r.CpuShares, r.CpuQuota, r.CpusetCpus, r.MemorySwapLimitInBytes = 2, -1, "", 5
			r.Unified["memory.max"] = "2"
			return a, nil
		},
		PreUpdateContainerResources: func(_ context.Context, c *plugin.Container) (*plugin.ContainerAnswer, error) {
			a := plugin.Echo(c)
			a.ContainerResources.CpuShares = 3
			return a, nil
		},
		PreUpdatePodSandboxResources: func(_ context.Context, p *plugin.Pod) (*plugin.PodAnswer, error) {
			a := plugin.EchoPod(p)
			a.Resources.CpuShares++
			return a, nil
		},
	})
	config := podConfig("web")
	pod := w.run(config)
	ran := w.runtime.Calls("RunPodSandbox")[0].Request.(*runtimeapi.RunPodSandboxRequest)
	want := proto.CloneOf(config)
	want.Annotations["added"], want.Labels["app"], want.Linux.CgroupParent = "yes", "other", "/offline"
	assertProto(t, want, ran.GetConfig())

	id, err := w.create(pod, config, containerConfig())
	require.NoError(t, err)
	made := w.runtime.Calls("CreateContainer")[0].Request.(*runtimeapi.CreateContainerRequest)
	wantContainer := containerConfig()
	wantContainer.Annotations["added"] = "yes"
	wantContainer.Envs = []*runtimeapi.KeyValue{{Key: "Z", Value: []byte("last")}, {Key: "A", Value: []byte("changed")}, {Key: "NEW", Value: []byte("n")}}
	r := wantContainer.Linux.Resources
	r.CpuShares, r.CpuQuota, r.CpusetCpus, r.MemorySwapLimitInBytes = 2, -1, "", 5
	r.Unified["memory.max"] = "2"
	assertProto(t, wantContainer, made.GetConfig())
	assert.Equal(t, "/offline", made.GetSandboxConfig().GetLinux().GetCgroupParent())

	_, err = w.client.UpdateContainerResources(w.ctx(), &runtimeapi.UpdateContainerResourcesRequest{ContainerId: id, Linux: &runtimeapi.LinuxContainerResources{CpuShares: 1024, CpuPeriod: 7}})
	require.NoError(t, err)
	assertProto(t, &runtimeapi.LinuxContainerResources{CpuShares: 3, CpuPeriod: 7}, w.runtime.Calls("UpdateContainerResources")[0].Request.(*runtimeapi.UpdateContainerResourcesRequest).GetLinux())

	_, err = w.client.UpdatePodSandboxResources(w.ctx(), &runtimeapi.UpdatePodSandboxResourcesRequest{PodSandboxId: pod, Resources: &runtimeapi.LinuxContainerResources{CpuShares: 50}})
	require.NoError(t, err)
	assertProto(t, &runtimeapi.LinuxContainerResources{CpuShares: 51}, w.runtime.Calls("UpdatePodSandboxResources")[0].Request.(*runtimeapi.UpdatePodSandboxResourcesRequest).GetResources())

	var fields []string
	for _, e := range happened[plugins.Asked](w) {
		if e.Point == "PreCreateContainer" {
			for _, c := range e.Changes {
				fields = append(fields, c.String())
			}
		}
	}
	assert.ElementsMatch(t, []string{
		`container_annotations["added"]: "" -> "yes"`,
		`container_resources.cpu_quota: "50000" -> "-1"`,
		`container_resources.cpu_shares: "512" -> "2"`,
		`container_resources.cpuset_cpus: "0-3" -> ""`,
		`container_resources.unified["memory.max"]: "" -> "2"`,
		`container_resources.memory_swap_limit_in_bytes: "0" -> "5"`,
		`pod_cgroup_parent: "/kubepods/web" -> "/offline"`,
		`container_envs["A"]: "[redacted]" -> "[redacted]"`,
		`container_envs["M"] removed`,
		`container_envs["NEW"]: "" -> "[redacted]"`,
	}, fields)
}

func assertProto(t testing.TB, want, got proto.Message) {
	t.Helper()
	if !proto.Equal(want, got) {
		assert.Fail(t, "not equal", "want %v\ngot  %v", want, got)
	}
}
