package fakecri

import (
	"context"
	"slices"
	"strconv"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A container belongs to a Runtime, whose mutex guards it.
type container struct {
	id         string
	name       string // reserved
	pod        *pod
	config     *runtimeapi.ContainerConfig
	imageID    string
	state      runtimeapi.ContainerState
	createdAt  int64
	startedAt  int64
	finishedAt int64
	resources  *runtimeapi.LinuxContainerResources
}

func (s runtimeService) CreateContainer(_ context.Context, r *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	return answer(s.Runtime, s.pods.named(r.GetPodSandboxId()), func(p *pod) (*runtimeapi.CreateContainerResponse, error) {
		c, err := s.createContainer(p, r.GetConfig(), r.GetSandboxConfig())
		if err != nil {
			return nil, err
		}
		return &runtimeapi.CreateContainerResponse{ContainerId: c.id}, nil
	})
}

func (rt *Runtime) createContainer(p *pod, config *runtimeapi.ContainerConfig, podConfig *runtimeapi.PodSandboxConfig) (*container, error) {
	md, podMD := config.GetMetadata(), podConfig.GetMetadata()
	if !p.ready {
		return nil, status.Errorf(codes.Unknown, "sandbox %q is not running", p.id)
	}
	image, err := rt.images.find(config.GetImage().GetImage())
	if err != nil {
		return nil, err
	}
	if ns := config.GetLinux().GetSecurityContext().GetNamespaceOptions(); ns.GetPid() == runtimeapi.NamespaceMode_TARGET {
		if _, err := rt.containers.get(ns.GetTargetId()); err != nil {
			return nil, err
		}
	}
	c := &container{
		id: rt.newID(), pod: p, config: config, imageID: image.id, createdAt: rt.now(),
		state: runtimeapi.ContainerState_CONTAINER_CREATED, resources: config.GetLinux().GetResources(),
	}
	name, holder := rt.reserve(c.id, "container", md.GetName(), podMD.GetName(), podMD.GetNamespace(), podMD.GetUid(),
		strconv.Itoa(int(md.GetAttempt())))
	if holder != "" {
		return nil, status.Errorf(codes.Unknown, "reserving the container's name %q: it is reserved for %q", name, holder)
	}
	c.name = name
	p.containers = append(p.containers, c)
	rt.containers.add(c.id, c)
	rt.send(c.id, p, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	return c, nil
}

func (s runtimeService) StartContainer(_ context.Context, r *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	return answer(s.Runtime, s.containers.named(r.GetContainerId()), func(c *container) (*runtimeapi.StartContainerResponse, error) {
		switch {
		case c.state != runtimeapi.ContainerState_CONTAINER_CREATED:
			return nil, status.Errorf(codes.Unknown, "container %q cannot be started: it is in %s state", c.id, c.state)
		case !c.pod.ready:
			return nil, status.Errorf(codes.Unknown, "sandbox %q is not running", c.pod.id)
		}
		c.state, c.startedAt = runtimeapi.ContainerState_CONTAINER_RUNNING, s.now()
		s.send(c.id, c.pod, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
		return &runtimeapi.StartContainerResponse{}, nil
	})
}

func (s runtimeService) StopContainer(_ context.Context, r *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &runtimeapi.StopContainerResponse{}, s.containers.ifThere(r.GetContainerId(), s.stopContainer)
}

// stopContainer ends c if it runs.
func (rt *Runtime) stopContainer(c *container) {
	if c.state != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return
	}
	c.state, c.finishedAt = runtimeapi.ContainerState_CONTAINER_EXITED, rt.now()
	rt.send(c.id, c.pod, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
}

func (s runtimeService) RemoveContainer(_ context.Context, r *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &runtimeapi.RemoveContainerResponse{}, s.containers.ifThere(r.GetContainerId(), s.removeContainer)
}

// removeContainer stops c and removes it.
func (rt *Runtime) removeContainer(c *container) {
	rt.stopContainer(c)
	rt.containers.remove(c.id)
	delete(rt.names, c.name)
	c.pod.containers = slices.DeleteFunc(slices.Clone(c.pod.containers), func(other *container) bool { return other == c })
	rt.send(c.id, c.pod, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
}

// UpdateContainerResources changes only the values that the request sets.
func (s runtimeService) UpdateContainerResources(_ context.Context, r *runtimeapi.UpdateContainerResourcesRequest) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	return answer(s.Runtime, s.containers.named(r.GetContainerId()), func(c *container) (*runtimeapi.UpdateContainerResourcesResponse, error) {
		resources := &runtimeapi.LinuxContainerResources{}
		proto.Merge(resources, c.resources)
		proto.Merge(resources, r.GetLinux())
		c.resources = resources
		return &runtimeapi.UpdateContainerResourcesResponse{}, nil
	})
}

func (s runtimeService) ReopenContainerLog(_ context.Context, r *runtimeapi.ReopenContainerLogRequest) (*runtimeapi.ReopenContainerLogResponse, error) {
	return answer(s.Runtime, s.named(r), func(*container) (*runtimeapi.ReopenContainerLogResponse, error) {
		return &runtimeapi.ReopenContainerLogResponse{}, nil
	})
}

// named returns a function that gets the container of a request, or an error if it is not running.
func (rt *Runtime) named(r interface{ GetContainerId() string }) func() (*container, error) {
	return func() (*container, error) { return rt.running(r.GetContainerId()) }
}

// running returns a container, or an error if it is not running.
func (rt *Runtime) running(id string) (*container, error) {
	c, err := rt.containers.get(id)
	if err != nil {
		return nil, err
	}
	if c.state != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return nil, status.Errorf(codes.Unknown, "container %q is not running: it is in %s state", c.id, c.state)
	}
	return c, nil
}
