package fakecri

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (rt *Runtime) listPods(f *runtimeapi.PodSandboxFilter) []*runtimeapi.PodSandbox {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	return listed(&rt.pods, rt.podFilter(f), (*pod).listed)
}

func (rt *Runtime) listContainers(f *runtimeapi.ContainerFilter) []*runtimeapi.Container {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	return listed(&rt.containers, rt.containerFilter(f), (*container).listed)
}

func (rt *Runtime) listImages() []*runtimeapi.Image {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	return listed(&rt.images.table, func(*image) bool { return true }, (*image).listed)
}

func (s runtimeService) ListPodSandbox(_ context.Context, r *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{Items: s.listPods(r.GetFilter())}, nil
}

func (s runtimeService) StreamPodSandboxes(r *runtimeapi.StreamPodSandboxesRequest, stream runtimeapi.RuntimeService_StreamPodSandboxesServer) error {
	return inBatches(stream.Context(), s.cfg.BatchSize, s.listPods(r.GetFilter()), func(batch []*runtimeapi.PodSandbox) error {
		return stream.Send(&runtimeapi.StreamPodSandboxesResponse{PodSandboxes: batch})
	})
}

func (s runtimeService) ListContainers(_ context.Context, r *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{Containers: s.listContainers(r.GetFilter())}, nil
}

func (s runtimeService) StreamContainers(r *runtimeapi.StreamContainersRequest, stream runtimeapi.RuntimeService_StreamContainersServer) error {
	return inBatches(stream.Context(), s.cfg.BatchSize, s.listContainers(r.GetFilter()), func(batch []*runtimeapi.Container) error {
		return stream.Send(&runtimeapi.StreamContainersResponse{Containers: batch})
	})
}

// ListImages ignores the filter, unless Config.LooksUpImages is set.
func (s imageService) ListImages(ctx context.Context, r *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	if name := r.GetFilter().GetImage().GetImage(); name != "" && s.cfg.LooksUpImages {
		one, err := s.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}})
		if err != nil || one.GetImage() == nil {
			return &runtimeapi.ListImagesResponse{}, err
		}
		return &runtimeapi.ListImagesResponse{Images: []*runtimeapi.Image{one.GetImage()}}, nil
	}
	return &runtimeapi.ListImagesResponse{Images: s.listImages()}, nil
}

// StreamImages ignores the filter.
func (s imageService) StreamImages(_ *runtimeapi.StreamImagesRequest, stream runtimeapi.ImageService_StreamImagesServer) error {
	return inBatches(stream.Context(), s.cfg.BatchSize, s.listImages(), func(batch []*runtimeapi.Image) error {
		return stream.Send(&runtimeapi.StreamImagesResponse{Images: batch})
	})
}

// inBatches sends items, at most size in each message. If there are no items it sends no message:
// CRI promises at least one item in each.
func inBatches[T any](ctx context.Context, size int, items []T, send func([]T) error) error {
	for len(items) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := min(size, len(items))
		if err := send(items[:n]); err != nil {
			return err
		}
		items = items[n:]
	}
	return nil
}
