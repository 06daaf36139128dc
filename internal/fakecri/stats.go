package fakecri

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Stats are made up from ids and the clock: each running container uses a constant share of one CPU,
// and a constant amount of memory and disk.

func (s runtimeService) ContainerStats(_ context.Context, r *runtimeapi.ContainerStatsRequest) (*runtimeapi.ContainerStatsResponse, error) {
	return answer(s.Runtime, s.named(r), func(c *container) (*runtimeapi.ContainerStatsResponse, error) {
		return &runtimeapi.ContainerStatsResponse{Stats: s.containerStats(c)}, nil
	})
}

func (s runtimeService) ListContainerStats(_ context.Context, r *runtimeapi.ListContainerStatsRequest) (*runtimeapi.ListContainerStatsResponse, error) {
	return &runtimeapi.ListContainerStatsResponse{Stats: s.listContainerStats(r.GetFilter())}, nil
}

func (s runtimeService) StreamContainerStats(r *runtimeapi.StreamContainerStatsRequest, stream runtimeapi.RuntimeService_StreamContainerStatsServer) error {
	return inBatches(stream.Context(), s.cfg.BatchSize, s.listContainerStats(r.GetFilter()), func(batch []*runtimeapi.ContainerStats) error {
		return stream.Send(&runtimeapi.StreamContainerStatsResponse{ContainerStats: batch})
	})
}

func (rt *Runtime) listContainerStats(f *runtimeapi.ContainerStatsFilter) []*runtimeapi.ContainerStats {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	return listed(&rt.containers, rt.containerFilter(&runtimeapi.ContainerFilter{
		Id: f.GetId(), PodSandboxId: f.GetPodSandboxId(), LabelSelector: f.GetLabelSelector(),
	}), rt.containerStats)
}

// containerStats returns the stats of c, without CPU and memory unless c is running.
func (rt *Runtime) containerStats(c *container) *runtimeapi.ContainerStats {
	now := rt.now()
	stats := &runtimeapi.ContainerStats{
		Attributes: &runtimeapi.ContainerAttributes{
			Id: c.id, Metadata: c.config.GetMetadata(), Labels: c.config.GetLabels(), Annotations: c.config.GetAnnotations(),
		},
		WritableLayer: &runtimeapi.FilesystemUsage{
			Timestamp:  now,
			FsId:       &runtimeapi.FilesystemIdentifier{Mountpoint: rt.cfg.ImageMount},
			UsedBytes:  value(4096 + spread(c.id, 1<<20)),
			InodesUsed: value(1 + spread(c.id, 100)),
		},
	}
	if c.state == runtimeapi.ContainerState_CONTAINER_RUNNING {
		stats.Cpu, stats.Memory = cpu(c.id, now, c.startedAt), memory(c.id, now)
	}
	return stats
}

func cpu(id string, now, since int64) *runtimeapi.CpuUsage {
	percent := 1 + spread(id, 50)
	return &runtimeapi.CpuUsage{
		Timestamp:            now,
		UsageCoreNanoSeconds: value(uint64(max(0, now-since)) / 100 * percent),
		UsageNanoCores:       value(percent * 10_000_000),
	}
}

func memory(id string, now int64) *runtimeapi.MemoryUsage {
	used := 1<<20 + spread(id, 64<<20)
	return &runtimeapi.MemoryUsage{
		Timestamp: now, WorkingSetBytes: value(used), UsageBytes: value(used), RssBytes: value(used / 2),
		AvailableBytes: value(0), PageFaults: value(used >> 12), MajorPageFaults: value(0),
	}
}

func value(v uint64) *runtimeapi.UInt64Value { return &runtimeapi.UInt64Value{Value: v} }

func (s runtimeService) PodSandboxStats(_ context.Context, r *runtimeapi.PodSandboxStatsRequest) (*runtimeapi.PodSandboxStatsResponse, error) {
	return answer(s.Runtime, s.pods.named(r.GetPodSandboxId()), func(p *pod) (*runtimeapi.PodSandboxStatsResponse, error) {
		if !p.ready {
			return nil, status.Errorf(codes.Unavailable, "sandbox %q is not ready", p.id)
		}
		return &runtimeapi.PodSandboxStatsResponse{Stats: s.podStats(p)}, nil
	})
}

func (s runtimeService) ListPodSandboxStats(_ context.Context, r *runtimeapi.ListPodSandboxStatsRequest) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	return &runtimeapi.ListPodSandboxStatsResponse{Stats: s.listPodStats(r.GetFilter())}, nil
}

func (s runtimeService) StreamPodSandboxStats(r *runtimeapi.StreamPodSandboxStatsRequest, stream runtimeapi.RuntimeService_StreamPodSandboxStatsServer) error {
	return inBatches(stream.Context(), s.cfg.BatchSize, s.listPodStats(r.GetFilter()), func(batch []*runtimeapi.PodSandboxStats) error {
		return stream.Send(&runtimeapi.StreamPodSandboxStatsResponse{PodSandboxStats: batch})
	})
}

// listPodStats returns the stats of ready pods.
func (rt *Runtime) listPodStats(f *runtimeapi.PodSandboxStatsFilter) []*runtimeapi.PodSandboxStats {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	passes := rt.podFilter(&runtimeapi.PodSandboxFilter{Id: f.GetId(), LabelSelector: f.GetLabelSelector()})
	return listed(&rt.pods, func(p *pod) bool { return p.ready && passes(p) }, rt.podStats)
}

func (rt *Runtime) podStats(p *pod) *runtimeapi.PodSandboxStats {
	now := rt.now()
	linux := &runtimeapi.LinuxPodSandboxStats{
		Cpu:     cpu(p.id, now, p.createdAt),
		Memory:  memory(p.id, now),
		Process: &runtimeapi.ProcessUsage{Timestamp: now, ProcessCount: value(uint64(1 + len(p.containers)))},
	}
	if p.ip != "" {
		linux.Network = &runtimeapi.NetworkUsage{Timestamp: now, DefaultInterface: &runtimeapi.NetworkInterfaceUsage{
			Name: "eth0", RxBytes: value(spread("rx"+p.id, 1<<30)), TxBytes: value(spread("tx"+p.id, 1<<30)),
			RxErrors: value(0), TxErrors: value(0),
		}}
	}
	for _, c := range p.containers {
		if c.state == runtimeapi.ContainerState_CONTAINER_RUNNING {
			linux.Containers = append(linux.Containers, rt.containerStats(c))
		}
	}
	return &runtimeapi.PodSandboxStats{
		Attributes: &runtimeapi.PodSandboxAttributes{
			Id: p.id, Metadata: p.config.GetMetadata(), Labels: p.config.GetLabels(), Annotations: p.config.GetAnnotations(),
		},
		Linux: linux,
	}
}
