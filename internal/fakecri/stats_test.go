package fakecri_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/fakecri"
)

func TestARunningContainerUsesTime(t *testing.T) {
	clock := &clock{}
	c := start(t, fakecri.Config{Clock: clock.Now})
	pod, id := c.running("web")
	used := func() uint64 {
		reply, err := c.ContainerStats(t.Context(), &runtimeapi.ContainerStatsRequest{ContainerId: id[:30]})
		require.NoError(t, err)
		assert.Equal(t, id, reply.GetStats().GetAttributes().GetId())
		assert.NotZero(t, reply.GetStats().GetMemory().GetWorkingSetBytes().GetValue())
		return reply.GetStats().GetCpu().GetUsageCoreNanoSeconds().GetValue()
	}
	before := used()
	clock.Add(time.Minute)
	assert.Greater(t, used(), before)

	_, err := c.PodSandboxStats(t.Context(), &runtimeapi.PodSandboxStatsRequest{PodSandboxId: pod})
	require.NoError(t, err)
	require.NoError(t, c.rt.Exit(id, 0))
	_, err = c.ContainerStats(t.Context(), &runtimeapi.ContainerStatsRequest{ContainerId: id})
	assertCode(t, codes.Unknown, err)
	_, err = c.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod})
	require.NoError(t, err)
	_, err = c.PodSandboxStats(t.Context(), &runtimeapi.PodSandboxStatsRequest{PodSandboxId: pod})
	assertCode(t, codes.Unavailable, err)
}

func TestStatsListsFilter(t *testing.T) {
	c := start(t, fakecri.Config{})
	pods, containers := fleet(c)
	all, err := c.ListContainerStats(t.Context(), &runtimeapi.ListContainerStatsRequest{})
	require.NoError(t, err)
	require.Len(t, all.GetStats(), 3)
	assert.Nil(t, all.GetStats()[2].GetCpu(), "the third one does not run")
	assert.NotNil(t, all.GetStats()[2].GetWritableLayer())

	one, err := c.ListContainerStats(t.Context(), &runtimeapi.ListContainerStatsRequest{
		Filter: &runtimeapi.ContainerStatsFilter{PodSandboxId: pods["db"][:30]},
	})
	require.NoError(t, err)
	require.Len(t, one.GetStats(), 1)
	assert.Equal(t, containers["db"], one.GetStats()[0].GetAttributes().GetId())

	ready, err := c.ListPodSandboxStats(t.Context(), &runtimeapi.ListPodSandboxStatsRequest{})
	require.NoError(t, err)
	require.Len(t, ready.GetStats(), 2)
	assert.Equal(t, pods["web"], ready.GetStats()[0].GetAttributes().GetId())
	require.Len(t, ready.GetStats()[0].GetLinux().GetContainers(), 1)
	assert.Equal(t, containers["web"], ready.GetStats()[0].GetLinux().GetContainers()[0].GetAttributes().GetId())

	selected, err := c.ListPodSandboxStats(t.Context(), &runtimeapi.ListPodSandboxStatsRequest{
		Filter: &runtimeapi.PodSandboxStatsFilter{LabelSelector: map[string]string{"pod": "db"}},
	})
	require.NoError(t, err)
	require.Len(t, selected.GetStats(), 1)
}

func TestMetricsHaveTheLabelsOfTheRuntimeTheyResemble(t *testing.T) {
	for style, want := range map[fakecri.MetricStyle]struct{ keys, cpuKeys, values []string }{
		"": {
			[]string{"pod", "namespace", "container", "id", "image"},
			[]string{"pod", "namespace", "container", "id", "image"},
			[]string{"web", "default", "main", "ID", "busybox"},
		},
		fakecri.CRIOMetrics: {
			[]string{"id", "image", "namespace", "pod", "container"},
			[]string{"id", "image", "namespace", "pod", "container", "cpu"},
			[]string{"ID", "busybox", "", "", "main"},
		},
	} {
		c := start(t, fakecri.Config{Metrics: style})
		pod, id := c.running("web")
		descriptors, err := c.ListMetricDescriptors(t.Context(), &runtimeapi.ListMetricDescriptorsRequest{})
		require.NoError(t, err)
		keys := map[string][]string{}
		for _, d := range descriptors.GetDescriptors() {
			keys[d.GetName()] = d.GetLabelKeys()
		}
		assert.Equal(t, want.keys, keys["container_memory_working_set_bytes"])
		assert.Equal(t, want.cpuKeys, keys["container_cpu_usage_seconds_total"])

		reply, err := c.ListPodSandboxMetrics(t.Context(), &runtimeapi.ListPodSandboxMetricsRequest{})
		require.NoError(t, err)
		require.Len(t, reply.GetPodMetrics(), 1)
		of := reply.GetPodMetrics()[0]
		assert.Equal(t, pod, of.GetPodSandboxId())
		require.Len(t, of.GetContainerMetrics(), 1)
		assert.Equal(t, id, of.GetContainerMetrics()[0].GetContainerId())
		for _, m := range append(of.GetMetrics(), of.GetContainerMetrics()[0].GetMetrics()...) {
			assert.Len(t, m.GetLabelValues(), len(keys[m.GetName()]), m.GetName())
		}
		require.Len(t, of.GetMetrics(), 1)
		assert.Contains(t, of.GetMetrics()[0].GetLabelValues(), pod)
		for i, value := range of.GetContainerMetrics()[0].GetMetrics()[1].GetLabelValues() {
			if want.values[i] == "ID" {
				want.values[i] = id
			}
			assert.Equal(t, want.values[i], value)
		}
	}
}

func TestStatsAndMetricsCanBeTakenAway(t *testing.T) {
	c := start(t, fakecri.Config{NoPodStats: true, NoMetrics: true})
	_, err := c.ListPodSandboxStats(t.Context(), &runtimeapi.ListPodSandboxStatsRequest{})
	assertCode(t, codes.Unimplemented, err)
	_, err = c.ListMetricDescriptors(t.Context(), &runtimeapi.ListMetricDescriptorsRequest{})
	assertCode(t, codes.Unimplemented, err)
	_, err = c.ListContainerStats(t.Context(), &runtimeapi.ListContainerStatsRequest{})
	assert.NoError(t, err)
}
