package fakecri_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/fakecri"
)

func TestMetricsHaveTheirRuntimesLabels(t *testing.T) {
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
