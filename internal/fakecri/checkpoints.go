package fakecri

import (
	"context"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (s runtimeService) CheckpointPod(_ context.Context, r *runtimeapi.CheckpointPodRequest) (*runtimeapi.CheckpointPodResponse, error) {
	return answer(s.Runtime, s.pods.named(r.GetPodSandboxId()), func(p *pod) (*runtimeapi.CheckpointPodResponse, error) {
		var saved []string
		for _, c := range p.containers {
			if slices.Contains(r.GetContainerIds(), c.id) {
				saved = append(saved, c.config.GetMetadata().GetName())
			}
		}
		s.checkpoint[r.GetOutputPath()] = saved
		return &runtimeapi.CheckpointPodResponse{}, nil
	})
}

// RestorePod creates the pod of the request, with the containers of the request that the checkpoint
// has. It creates all of them or nothing.
func (s runtimeService) RestorePod(_ context.Context, r *runtimeapi.RestorePodRequest) (*runtimeapi.RestorePodResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	saved, there := s.checkpoint[r.GetCheckpointPath()]
	if !there {
		return nil, status.Errorf(codes.NotFound, "checkpoint %s: not found", r.GetCheckpointPath())
	}
	p, err := s.runPod(r.GetConfig(), r.GetRuntimeHandler())
	if err != nil {
		return nil, err
	}
	reply := &runtimeapi.RestorePodResponse{PodSandboxId: p.id}
	for _, config := range r.GetContainerConfigs() {
		name := config.GetMetadata().GetName()
		if !slices.Contains(saved, name) {
			continue
		}
		c, err := s.createContainer(p, config, r.GetConfig())
		if err != nil {
			s.removePod(p)
			return nil, err
		}
		reply.RestoredContainers = append(reply.RestoredContainers, &runtimeapi.RestoredContainer{Name: name, ContainerId: c.id})
	}
	return reply, nil
}
