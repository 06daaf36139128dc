package fakecri

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A pod is a sandbox. It belongs to a Runtime, whose mutex guards it.
type pod struct {
	id         string
	name       string // reserved
	config     *runtimeapi.PodSandboxConfig
	handler    string
	ready      bool
	createdAt  int64
	ip         string // empty on the host's network
	containers []*container
}

func (s runtimeService) RunPodSandbox(_ context.Context, r *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := s.runPod(r.GetConfig(), r.GetRuntimeHandler())
	if err != nil {
		return nil, err
	}
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: p.id}, nil
}

func (rt *Runtime) runPod(config *runtimeapi.PodSandboxConfig, handler string) (*pod, error) {
	md := config.GetMetadata()
	if md == nil {
		return nil, status.Error(codes.Unknown, "the sandbox's config has no metadata")
	}
	if !slices.Contains(handlers, handler) {
		return nil, status.Errorf(codes.Unknown, "no runtime for %q is configured", handler)
	}
	p := &pod{id: rt.newID(), config: config, handler: handler, ready: true, createdAt: rt.now()}
	name, holder := rt.reserve(p.id, md.GetName(), md.GetNamespace(), md.GetUid(), strconv.Itoa(int(md.GetAttempt())))
	if holder != "" {
		return nil, status.Errorf(codes.Unknown, "reserving the sandbox's name %q: it is reserved for %q", name, holder)
	}
	p.name = name
	if config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() != runtimeapi.NamespaceMode_NODE {
		rt.addresses++
		p.ip = fmt.Sprintf("10.88.%d.%d", rt.addresses>>8&0xff, rt.addresses&0xff)
	}
	rt.pods.add(p.id, p)
	rt.send(p.id, p, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	rt.send(p.id, p, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	return p, nil
}

func (s runtimeService) StopPodSandbox(_ context.Context, r *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &runtimeapi.StopPodSandboxResponse{}, s.pods.ifThere(r.GetPodSandboxId(), s.stopPod)
}

func (rt *Runtime) stopPod(p *pod) {
	for _, c := range p.containers {
		rt.stopContainer(c)
	}
	if p.ready {
		p.ready, p.ip = false, ""
		rt.send(p.id, p, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	}
}

func (s runtimeService) RemovePodSandbox(_ context.Context, r *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &runtimeapi.RemovePodSandboxResponse{}, s.pods.ifThere(r.GetPodSandboxId(), s.removePod)
}

// removePod stops p and removes it with its containers. The event of a removed sandbox still holds
// its status; the event of a removed container does not.
func (rt *Runtime) removePod(p *pod) {
	rt.stopPod(p)
	for _, c := range slices.Clone(p.containers) {
		rt.removeContainer(c)
	}
	rt.send(p.id, p, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
	rt.pods.remove(p.id)
	delete(rt.names, p.name)
}

func (s runtimeService) PodSandboxStatus(_ context.Context, r *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	return answer(s.Runtime, s.pods.named(r.GetPodSandboxId()), func(p *pod) (*runtimeapi.PodSandboxStatusResponse, error) {
		reply := &runtimeapi.PodSandboxStatusResponse{Status: p.status()}
		if s.cfg.PodStatusHasContainers {
			reply.Timestamp = s.now()
			for _, c := range p.containers {
				reply.ContainersStatuses = append(reply.ContainersStatuses, s.containerStatus(c))
			}
		}
		if r.GetVerbose() {
			reply.Info = verbose("sandboxID", p.id, "runtimeHandler", p.handler, "config", p.config)
		}
		return reply, nil
	})
}

// UpdatePodSandboxResources changes the config that a verbose PodSandboxStatus shows.
func (s runtimeService) UpdatePodSandboxResources(_ context.Context, r *runtimeapi.UpdatePodSandboxResourcesRequest) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	return answer(s.Runtime, s.pods.named(r.GetPodSandboxId()), func(p *pod) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
		config := proto.CloneOf(p.config)
		if config.Linux == nil {
			config.Linux = &runtimeapi.LinuxPodSandboxConfig{}
		}
		if r.GetOverhead() != nil {
			config.Linux.Overhead = r.GetOverhead()
		}
		if r.GetResources() != nil {
			config.Linux.Resources = r.GetResources()
		}
		p.config = config
		return &runtimeapi.UpdatePodSandboxResourcesResponse{}, nil
	})
}

func (p *pod) state() runtimeapi.PodSandboxState {
	if p.ready {
		return runtimeapi.PodSandboxState_SANDBOX_READY
	}
	return runtimeapi.PodSandboxState_SANDBOX_NOTREADY
}

func (p *pod) status() *runtimeapi.PodSandboxStatus {
	return &runtimeapi.PodSandboxStatus{
		Id:        p.id,
		Metadata:  p.config.GetMetadata(),
		State:     p.state(),
		CreatedAt: p.createdAt,
		Network:   &runtimeapi.PodSandboxNetworkStatus{Ip: p.ip},
		Linux: &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{
			Options: p.config.GetLinux().GetSecurityContext().GetNamespaceOptions(),
		}},
		Labels:         p.config.GetLabels(),
		Annotations:    p.config.GetAnnotations(),
		RuntimeHandler: p.handler,
	}
}

func (p *pod) listed() *runtimeapi.PodSandbox {
	return &runtimeapi.PodSandbox{
		Id:             p.id,
		Metadata:       p.config.GetMetadata(),
		State:          p.state(),
		CreatedAt:      p.createdAt,
		Labels:         p.config.GetLabels(),
		Annotations:    p.config.GetAnnotations(),
		RuntimeHandler: p.handler,
	}
}
