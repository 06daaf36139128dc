package fakecri

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A metric is a metric of pods (network) or of containers. Extra is a label that follows the labels
// that all metrics have.
type metric struct {
	name, help string
	kind       runtimeapi.MetricType
	ofPod      bool
	extra      string
	extraValue string
	crioOnly   bool // the extra label
	value      func(s *runtimeapi.ContainerStats) uint64
}

var metrics = []metric{
	{
		name: "container_cpu_usage_seconds_total", help: "CPU time used in seconds.", kind: runtimeapi.MetricType_COUNTER,
		extra: "cpu", extraValue: "total", crioOnly: true,
		value: func(s *runtimeapi.ContainerStats) uint64 {
			return s.GetCpu().GetUsageCoreNanoSeconds().GetValue() / 1e9
		},
	},
	{
		name: "container_memory_working_set_bytes", help: "Size of the working set in bytes.", kind: runtimeapi.MetricType_GAUGE,
		value: func(s *runtimeapi.ContainerStats) uint64 { return s.GetMemory().GetWorkingSetBytes().GetValue() },
	},
	{
		name: "container_network_receive_bytes_total", help: "Bytes received.", kind: runtimeapi.MetricType_COUNTER,
		ofPod: true, extra: "interface", extraValue: "eth0",
	},
}

func (rt *Runtime) labelKeys(m *metric) []string {
	keys := []string{"pod", "namespace", "container", "id", "image"}
	if rt.cfg.Metrics == CRIOMetrics {
		keys = []string{"id", "image", "namespace", "pod", "container"}
	}
	if m.extra != "" && (!m.crioOnly || rt.cfg.Metrics == CRIOMetrics) {
		keys = append(keys, m.extra)
	}
	return keys
}

func (s runtimeService) ListMetricDescriptors(context.Context, *runtimeapi.ListMetricDescriptorsRequest) (*runtimeapi.ListMetricDescriptorsResponse, error) {
	reply := &runtimeapi.ListMetricDescriptorsResponse{}
	for _, m := range metrics {
		reply.Descriptors = append(reply.Descriptors, &runtimeapi.MetricDescriptor{Name: m.name, Help: m.help, LabelKeys: s.labelKeys(&m)})
	}
	return reply, nil
}

func (s runtimeService) ListPodSandboxMetrics(context.Context, *runtimeapi.ListPodSandboxMetricsRequest) (*runtimeapi.ListPodSandboxMetricsResponse, error) {
	return &runtimeapi.ListPodSandboxMetricsResponse{PodMetrics: s.listMetrics()}, nil
}

func (s runtimeService) StreamPodSandboxMetrics(_ *runtimeapi.StreamPodSandboxMetricsRequest, stream runtimeapi.RuntimeService_StreamPodSandboxMetricsServer) error {
	return inBatches(stream.Context(), s.cfg.BatchSize, s.listMetrics(), func(batch []*runtimeapi.PodSandboxMetrics) error {
		return stream.Send(&runtimeapi.StreamPodSandboxMetricsResponse{PodSandboxMetrics: batch})
	})
}

// listMetrics returns the metrics of ready pods.
func (rt *Runtime) listMetrics() []*runtimeapi.PodSandboxMetrics {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	return listed(&rt.pods, func(p *pod) bool { return p.ready }, func(p *pod) *runtimeapi.PodSandboxMetrics {
		item := &runtimeapi.PodSandboxMetrics{PodSandboxId: p.id}
		for _, m := range metrics {
			if m.ofPod && p.ip != "" {
				item.Metrics = append(item.Metrics, rt.sample(&m, p, nil))
			}
		}
		for _, c := range p.containers {
			if c.state != runtimeapi.ContainerState_CONTAINER_RUNNING {
				continue
			}
			of := &runtimeapi.ContainerMetrics{ContainerId: c.id}
			for _, m := range metrics {
				if !m.ofPod {
					of.Metrics = append(of.Metrics, rt.sample(&m, p, c))
				}
			}
			item.ContainerMetrics = append(item.ContainerMetrics, of)
		}
		return item
	})
}

// sample returns the metric of a container, or of the pod if c is nil.
func (rt *Runtime) sample(m *metric, p *pod, c *container) *runtimeapi.Metric {
	labels := map[string]string{
		"id": p.id, "pod": p.config.GetMetadata().GetName(), "namespace": p.config.GetMetadata().GetNamespace(),
		m.extra: m.extraValue,
	}
	sample := &runtimeapi.Metric{Name: m.name, MetricType: m.kind, Timestamp: rt.now()}
	if c == nil {
		sample.Value = value(spread("rx"+p.id, 1<<30))
	} else {
		labels["id"], labels["container"] = c.id, c.config.GetMetadata().GetName()
		labels["image"] = c.config.GetImage().GetUserSpecifiedImage()
		if rt.cfg.Metrics == CRIOMetrics {
			labels["pod"], labels["namespace"] = "", ""
		}
		sample.Value = value(m.value(rt.containerStats(c)))
	}
	for _, key := range rt.labelKeys(m) {
		sample.LabelValues = append(sample.LabelValues, labels[key])
	}
	return sample
}
