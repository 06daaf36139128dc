package fakecri

import (
	"context"
	"encoding/json"
	"path"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (s runtimeService) ContainerStatus(_ context.Context, r *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	return answer(s.Runtime, s.containers.named(r.GetContainerId()), func(c *container) (*runtimeapi.ContainerStatusResponse, error) {
		reply := &runtimeapi.ContainerStatusResponse{Status: s.containerStatus(c)}
		if r.GetVerbose() {
			reply.Info = verbose("sandboxID", c.pod.id, "imageID", c.imageID, "config", c.config)
		}
		return reply, nil
	})
}

// containerStatus returns the status of c. It names the image by its first tag and digest; lists name
// the image as the container's config does.
func (rt *Runtime) containerStatus(c *container) *runtimeapi.ContainerStatus {
	spec, ref := c.config.GetImage(), c.imageID
	if image := rt.images.byID[c.imageID]; image != nil {
		if len(image.tags) > 0 {
			spec = &runtimeapi.ImageSpec{Image: image.tags[0]}
		}
		if len(image.digests) > 0 {
			ref = image.digests[0]
		}
	}
	status := &runtimeapi.ContainerStatus{
		Id:          c.id,
		Metadata:    c.config.GetMetadata(),
		State:       c.state,
		CreatedAt:   c.createdAt,
		StartedAt:   c.startedAt,
		FinishedAt:  c.finishedAt,
		Image:       spec,
		ImageRef:    ref,
		ImageId:     c.imageID,
		Labels:      c.config.GetLabels(),
		Annotations: c.config.GetAnnotations(),
		Mounts:      c.config.GetMounts(),
	}
	if c.state == runtimeapi.ContainerState_CONTAINER_EXITED {
		status.ExitCode, status.Reason = 128+9, "Error" // as after SIGKILL
	}
	if log := c.config.GetLogPath(); log != "" {
		status.LogPath = path.Join(c.pod.config.GetLogDirectory(), log)
	}
	if c.resources != nil {
		status.Resources = &runtimeapi.ContainerResources{Linux: c.resources}
	}
	return status
}

func (c *container) listed() *runtimeapi.Container {
	return &runtimeapi.Container{
		Id:           c.id,
		PodSandboxId: c.pod.id,
		Metadata:     c.config.GetMetadata(),
		Image:        c.config.GetImage(),
		ImageRef:     c.imageID,
		ImageId:      c.imageID,
		State:        c.state,
		CreatedAt:    c.createdAt,
		Labels:       c.config.GetLabels(),
		Annotations:  c.config.GetAnnotations(),
	}
}

// verbose returns the info of a verbose status: one JSON object with pairs of keys and values.
func verbose(pairs ...any) map[string]string {
	object := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		value := pairs[i+1]
		if m, ok := value.(proto.Message); ok {
			b, err := protojson.Marshal(m)
			if err != nil {
				value = err.Error()
			} else {
				value = json.RawMessage(b)
			}
		}
		object[pairs[i].(string)] = value
	}
	b, err := json.Marshal(object)
	if err != nil {
		b = []byte(err.Error())
	}
	return map[string]string{"info": string(b)}
}
