package plugins_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/hook/plugin"
	"github.com/criproxy/criproxy/internal/plugins"
)

// These tests repeat what koordlet did with real pods: https://github.com/koordinator-sh/koordinator, pkg/koordlet/runtimehooks.

// koordlet removes the CPU limit of LSR pods. KoordRuntimeProxy ignores that before a pod is created. criproxy passed it on,
// and the runtime got the annotation sandbox-cpu-quota -1, by which Kata sizes its virtual machine.
func TestResourcesForANewPodAreIgnored(t *testing.T) {
	lift := plugin.Plugin{Name: "koordlet",
		PreRunPodSandbox: func(_ context.Context, p *plugin.Pod) (*plugin.PodAnswer, error) {
			a := plugin.EchoPod(p)
			a.Resources = &plugin.Resources{CpuQuota: -1}
			return a, nil
		}}
	for _, heeded := range []bool{false, true} {
		w := newWorld(t)
		w.stop()
		cfg, err := criadapter.Hooks(criadapter.HookOptions{PodResources: heeded})
		require.NoError(t, err)
		w.cfg.Spec = cfg.Spec
		w.start()
		w.plug(lift)
		w.run(&runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "bare", Namespace: "default", Uid: "1"}})
		made := w.runtime.Calls("RunPodSandbox")[0].Request.(*runtimeapi.RunPodSandboxRequest).GetConfig()
		if heeded {
			assert.EqualValues(t, -1, made.GetLinux().GetResources().GetCpuQuota())
		} else {
			assert.Nil(t, made.GetLinux(), "a pod without linux gets none")
		}
	}
}

// The CPU quota became 80000, 64000, 51200 and so on, because at each update koordlet got its own previous answer.
func TestNormalizedQuotasDoNotCompound(t *testing.T) {
	w := newWorld(t)
	var passed []int64 // needs no lock: calls come one after the other
	normalize := func(_ context.Context, c *plugin.Container) (*plugin.ContainerAnswer, error) {
		a := plugin.Echo(c)
		passed = append(passed, a.ContainerResources.CpuQuota)
		a.ContainerResources.CpuQuota = a.ContainerResources.CpuQuota * 8 / 10
		return a, nil
	}
	started := make(chan int64, 1)
	w.plug(plugin.Plugin{Name: "koordlet", PreCreateContainer: normalize, PreUpdateContainerResources: normalize,
		PreStartContainer: func(_ context.Context, c *plugin.Container) (*plugin.ContainerAnswer, error) {
			started <- c.GetContainerResources().GetCpuQuota()
			return nil, nil
		}})
	config, container := podConfig("web"), containerConfig()
	container.Linux.Resources.CpuQuota = 100000
	id, err := w.create(w.run(config), config, container)
	require.NoError(t, err)
	_, err = w.client.StartContainer(w.ctx(), &runtimeapi.StartContainerRequest{ContainerId: id})
	require.NoError(t, err)
	assert.EqualValues(t, 80000, <-started, "if no request sets it, plugins get the value of the latest answer")
	for _, r := range []*runtimeapi.LinuxContainerResources{{CpusetCpus: "0"}, {CpusetCpus: "1"}, {CpuQuota: 50000}, {CpuShares: 3}} {
		_, err = w.client.UpdateContainerResources(w.ctx(), &runtimeapi.UpdateContainerResourcesRequest{ContainerId: id, Linux: r})
		require.NoError(t, err)
	}
	assert.Equal(t, []int64{100000, 100000, 100000, 50000, 50000}, passed, "what the client wanted")
	var got []int64
	for _, call := range w.runtime.Calls("UpdateContainerResources") {
		got = append(got, call.Request.(*runtimeapi.UpdateContainerResourcesRequest).GetLinux().GetCpuQuota())
	}
	assert.Equal(t, []int64{80000, 80000, 40000, 40000}, got)
}

// A list fails while a runtime is gone that has more items than its cache takes, and lacks the pods of a runtime that is gone
// and has the policy skip. What clients asked for could not be learned again.
func TestWhatClientsAskedForOutlivesListsThatLackIt(t *testing.T) {
	w := newWorld(t)
	w.stop()
	list, lists := w.cfg.List, map[string]func(context.Context, grpc.ClientConnInterface, string) ([]string, error){
		"all": w.cfg.List,
		"an error": func(context.Context, grpc.ClientConnInterface, string) ([]string, error) {
			return nil, status.Error(codes.Unavailable, "the cache lacks items")
		},
		"none": func(context.Context, grpc.ClientConnInterface, string) ([]string, error) { return nil, nil },
	}
	var mu sync.Mutex // guards list
	w.cfg.List = func(ctx context.Context, conn grpc.ClientConnInterface, kind string) ([]string, error) {
		mu.Lock()
		defer mu.Unlock()
		return list(ctx, conn, kind)
	}
	w.start()
	var got []int64 // needs no lock: calls come one after the other
	halve := func(_ context.Context, c *plugin.Container) (*plugin.ContainerAnswer, error) {
		a := plugin.Echo(c)
		got = append(got, a.ContainerResources.CpuQuota)
		a.ContainerResources.CpuQuota /= 2
		return a, nil
	}
	w.plug(plugin.Plugin{Name: "koordlet", Fail: true, PreCreateContainer: halve, PreUpdateContainerResources: halve})
	config, container := podConfig("web"), containerConfig()
	container.Linux.Resources.CpuQuota = 100000
	pod := w.run(config)
	id, err := w.create(pod, config, container)
	require.NoError(t, err)
	gone := status.Error(codes.Unavailable, "the runtime is gone")
	for _, answer := range []string{"all", "an error", "none"} {
		mu.Lock()
		list = lists[answer]
		mu.Unlock()
		w.wire.failing(func(string) error { return gone })
		if err := w.plugins.Learn(w.ctx()); answer == "an error" {
			require.Error(t, err)
		}
		w.wire.failing(nil)
		_, err = w.client.UpdateContainerResources(w.ctx(), &runtimeapi.UpdateContainerResourcesRequest{ContainerId: id, Linux: &runtimeapi.LinuxContainerResources{CpusetCpus: "0"}})
		require.NoError(t, err)
	}
	assert.Equal(t, []int64{100000, 100000, 100000, 100000}, got)

	// Somebody removes the pod, and criproxy does not see that.
	_, err = runtimeapi.NewRuntimeServiceClient(w.wire).RemovePodSandbox(w.ctx(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod})
	require.NoError(t, err)
	require.NoError(t, w.plugins.Learn(w.ctx()))
	assert.Empty(t, w.plugins.State().Known)
}

// koordlet names a point in its file that only NRI has, and criproxy used to warn of that.
func TestAPointOfNRIIsNoCauseForAWarning(t *testing.T) {
	w := newWorld(t)
	w.file("koordlet", `{"remote-endpoint": "/run/koordlet.sock", "runtime-hooks": ["PreRunPodSandbox", "PreRemoveRunPodSandbox"]}`)
	w.until("it is loaded", func() bool { return len(happened[plugins.Loaded](w)) == 1 })
	assert.Empty(t, happened[plugins.Loaded](w)[0].Warnings)
	w.file("other", `{"remote-endpoint": "/run/other.sock", "runtime-hooks": ["PreRemovePodSandbox"]}`)
	w.until("it is loaded", func() bool { return len(happened[plugins.Loaded](w)) == 2 })
	assert.Len(t, happened[plugins.Loaded](w)[1].Warnings, 1)
}
