package server

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/fakecri"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// kept are the label keys of each metric that a client gets. kubelet asks for them
// only when it starts.
func (n *node) kept() map[string][]string {
	n.Helper()
	reply, err := n.ListMetricDescriptors(n.ctx(), &runtimeapi.ListMetricDescriptorsRequest{})
	require.NoError(n, err)
	kept := map[string][]string{}
	for _, d := range reply.GetDescriptors() {
		assert.NotContains(n, kept, d.GetName(), "a descriptor each")
		kept[d.GetName()] = d.GetLabelKeys()
	}
	return kept
}

// sampled returns the label values of all samples of containers: id of the container →
// metric → label → value. All samples must fit the kept keys, as kubelet requires.
func (n *node) sampled(kept map[string][]string) map[string]map[string]map[string]string {
	n.Helper()
	reply, err := n.ListPodSandboxMetrics(n.ctx(), &runtimeapi.ListPodSandboxMetricsRequest{})
	require.NoError(n, err)
	all := map[string]map[string]map[string]string{}
	for _, pod := range reply.GetPodMetrics() {
		for _, c := range pod.GetContainerMetrics() {
			all[c.GetContainerId()] = map[string]map[string]string{}
			for _, m := range c.GetMetrics() {
				if kept[m.GetName()] == nil {
					continue // kubelet ignores it
				}
				require.Len(n, m.GetLabelValues(), len(kept[m.GetName()]), "%s of %s", m.GetName(), c.GetContainerId())
				values := map[string]string{}
				for i, key := range kept[m.GetName()] {
					values[key] = m.GetLabelValues()[i]
				}
				all[c.GetContainerId()][m.GetName()] = values
			}
		}
	}
	return all
}

const cpuSeconds = "container_cpu_usage_seconds_total" // only CRI-O has the label cpu

func TestALaterRuntimeChangesNoOldDescriptor(t *testing.T) {
	inBothModes(t, func(t *testing.T, mode func(*config.Config)) {
		n := newNode(t, mode, machineConfig{}, machineConfig{Config: fakecri.Config{Metrics: fakecri.CRIOMetrics}, backend: config.Backend{Name: "beta.io"}, absent: true})
		n.isUp(0)
		one := n.run(0, "one", 2).containers[0]
		kept := n.kept()
		require.Equal(t, []string{"pod", "namespace", "container", "id", "image"}, kept[cpuSeconds])
		before := n.sampled(kept)[one]
		require.NotEmpty(t, before[cpuSeconds])

		n.runtimes[1].Start()
		n.isUp(1)
		two := n.run(1, "two", 2).containers[0]
		testkit.Eventually(t, "the other's metrics are there", func() bool { return len(n.sampled(kept)[two]) > 0 })
		fits := func(why string) {
			t.Helper()
			all := n.sampled(kept)
			assert.Equal(t, before, all[one], "the primary's samples are what they were "+why)
			assert.Equal(t, two, all[two][cpuSeconds]["id"], "labels stand where they were "+why)
			assert.Len(t, all[two], len(all[one]))
		}
		fits("when another runtime came")
		assert.Equal(t, kept, n.kept(), "later requests get the same")
		fits("when a client asked again")
		n.known()
		next := *n.cfg
		next.Backends[1].MaxCalls = 17
		require.NoError(t, reload(n.proxy, &next))
		fits("after a reload")
		n.stop()
		n.start()
		n.isUp(0)
		n.isUp(1)
		testkit.Eventually(t, "the other's metrics are there", func() bool { return len(n.sampled(kept)[two]) > 0 })
		fits("after a restart of the proxy")
	})
}

func TestASampleThatDoesNotFitIsLeftOut(t *testing.T) {
	t.Parallel()
	descriptors := func(keys ...string) []byte {
		return encode(t, &runtimeapi.ListMetricDescriptorsResponse{Descriptors: []*runtimeapi.MetricDescriptor{{Name: "disk_bytes", LabelKeys: keys}, {Name: "of_" + keys[0], LabelKeys: keys}}})
	}
	samples := func(pod string, values ...[]string) []byte {
		m := &runtimeapi.PodSandboxMetrics{PodSandboxId: pod}
		for _, v := range values {
			m.Metrics = append(m.Metrics, &runtimeapi.Metric{Name: "disk_bytes", LabelValues: v})
		}
		m.Metrics = append(m.Metrics, &runtimeapi.Metric{Name: "of_pod", LabelValues: []string{"x"}}, &runtimeapi.Metric{Name: "of_device", LabelValues: values[0]})
		return encode(t, &runtimeapi.ListPodSandboxMetricsResponse{PodMetrics: []*runtimeapi.PodSandboxMetrics{m}})
	}
	n := merged(t, nil,
		replies{"ListMetricDescriptors": descriptors("pod"), "ListPodSandboxMetrics": samples("1", []string{"p"}, []string{"too", "many"})},
		replies{"ListMetricDescriptors": descriptors("device", "pod"), "ListPodSandboxMetrics": samples("2", []string{"sda", "q"}, []string{"total", "q"}, []string{"too few"})})
	kept := n.kept()
	assert.Equal(t, map[string][]string{"disk_bytes": {"pod"}, "of_pod": {"pod"}, "of_device": {"device", "pod"}}, kept)
	reply, err := n.ListPodSandboxMetrics(t.Context(), &runtimeapi.ListPodSandboxMetricsRequest{})
	require.NoError(t, err)
	var got [][]string
	for _, pod := range reply.GetPodMetrics() {
		for _, m := range pod.GetMetrics() {
			got = append(got, append([]string{pod.GetPodSandboxId(), m.GetName()}, m.GetLabelValues()...))
		}
	}
	assert.Equal(t, [][]string{
		{"1", "disk_bytes", "p"}, {"1", "disk_bytes", "too", "many"}, {"1", "of_pod", "x"}, {"1", "of_device", "p"}, // as they came
		{"beta.io__2", "disk_bytes", "q"}, {"beta.io__2", "of_device", "sda", "q"},
	}, got, "incomplete metrics and values without a descriptor are left out")
}
