package cli

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// session is the demo's client. It makes, inspects and removes two pods, one on each runtime, through one socket, and
// prints each call on a line with its result.
type session struct {
	runtime runtimeapi.RuntimeServiceClient
	image   runtimeapi.ImageServiceClient
	logs    string // the folder for the logs of containers
	out     io.Writer
	events  runtimeapi.RuntimeService_GetContainerEventsClient
	pods    []*demoPod // the pods that stay; nil if there are none
}

func newSession(cc grpc.ClientConnInterface, logs string, out io.Writer) *session {
	return &session{runtime: runtimeapi.NewRuntimeServiceClient(cc), image: runtimeapi.NewImageServiceClient(cc), logs: logs, out: out}
}

// demoPod is one pod of the session.
type demoPod struct {
	name, image, why   string
	handler            string
	sandbox, container string
	config             *runtimeapi.PodSandboxConfig
}

// demoPods returns the pods of the session, one for each runtime.
func demoPods() []*demoPod {
	return []*demoPod{
		{name: "web", image: "docker.io/library/nginx:1", why: "nothing says where it goes: the primary"},
		{name: "vm", image: demoBackend + "/images/cirros:1", handler: "vm", why: "RuntimeClass handler vm: " + demoBackend},
	}
}

func (s *session) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	defer callsItself("demo-kubelet")()
	pods := demoPods()
	version, err := s.runtime.Version(ctx, &runtimeapi.VersionRequest{})
	if err != nil {
		return err
	}
	s.say("Version", "", "%s %s, as the primary says", version.GetRuntimeName(), version.GetRuntimeVersion())
	if s.events, err = s.runtime.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{}); err != nil {
		return err
	}
	for _, p := range pods {
		if err := s.start(ctx, p); err != nil {
			return err
		}
	}
	if err := s.inspect(ctx, pods); err != nil {
		return err
	}
	if err := s.mistakes(ctx); err != nil {
		return err
	}
	return s.remove(ctx, pods)
}

// start pulls the image of a pod and runs it.
func (s *session) start(ctx context.Context, p *demoPod) error {
	labels := map[string]string{ // the labels that kubelet sets, which crictl shows
		"io.kubernetes.pod.name": p.name, "io.kubernetes.pod.namespace": "default", "io.kubernetes.pod.uid": "uid-" + p.name,
	}
	p.config = &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: p.name, Namespace: "default", Uid: "uid-" + p.name},
		Labels:       labels,
		LogDirectory: filepath.Join(s.logs, "default_"+p.name+"_uid-"+p.name),
	}
	sandbox, err := s.runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: p.config, RuntimeHandler: p.handler})
	if err != nil {
		return err
	}
	p.sandbox = sandbox.GetPodSandboxId()
	s.say("RunPodSandbox", p.name, "%s    %s", short(p.sandbox), p.why)
	image, err := s.image.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: p.image}, SandboxConfig: p.config})
	if err != nil {
		return err
	}
	s.say("PullImage", p.image, "%s", short(image.GetImageRef()))
	created, err := s.runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: p.sandbox, SandboxConfig: p.config,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "main"},
			Image:    &runtimeapi.ImageSpec{Image: image.GetImageRef(), UserSpecifiedImage: p.image},
			Labels:   labels,
			LogPath:  "main/0.log",
		},
	})
	if err != nil {
		return err
	}
	p.container = created.GetContainerId()
	if _, err := s.runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: p.container}); err != nil {
		return err
	}
	s.say("StartContainer", short(p.container), "ok")
	return nil
}

// inspect asks for lists, status, events and output.
func (s *session) inspect(ctx context.Context, pods []*demoPod) error {
	if err := s.list(ctx); err != nil {
		return err
	}
	images, err := s.image.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		return err
	}
	s.say("ListImages", "", "%s", each(images.GetImages(), func(i *runtimeapi.Image) string { return strings.Join(i.GetRepoTags(), " ") }))
	for _, p := range pods {
		st, err := s.runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: p.container})
		if err != nil {
			return err
		}
		s.say("ContainerStatus", short(p.container), "%s", strings.TrimPrefix(st.GetStatus().GetState().String(), "CONTAINER_"))
		if err := s.sayExec(ctx, p); err != nil {
			return err
		}
	}
	var seen []string
	for len(seen) < 2 { // the start of a container on each runtime
		e, err := s.events.Recv()
		if err != nil {
			return err
		}
		for _, p := range pods {
			if e.GetContainerId() == p.container && e.GetContainerEventType() == runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT {
				seen = append(seen, short(p.container)+" started")
			}
		}
	}
	slices.Sort(seen)
	s.say("GetContainerEvents", "", "%s", strings.Join(seen, "\n"))
	return nil
}

// mistakes shows what a wrong name gets.
func (s *session) mistakes(ctx context.Context) error {
	_, err := s.runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: "gamma.io__0123456789ab"})
	if err == nil {
		return fmt.Errorf("a container of no runtime was stopped")
	}
	s.say("StopContainer", "gamma.io__0123456789ab", "%s: %s", status.Code(err), status.Convert(err).Message())
	return nil
}

// remove takes the pods down, and shows that nothing is left.
func (s *session) remove(ctx context.Context, pods []*demoPod) error {
	for _, p := range pods {
		if _, err := s.runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.sandbox}); err != nil {
			return err
		}
		if _, err := s.runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.sandbox}); err != nil {
			return err
		}
		s.say("RemovePodSandbox", short(p.sandbox), "ok")
		if _, err := s.image.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: p.image}}); err != nil {
			return err
		}
		s.say("RemoveImage", p.image, "ok")
	}
	for gone := 0; gone < 2*len(pods); { // the sandbox and the container of each, so that a recording has all events
		e, err := s.events.Recv()
		if err != nil {
			return err
		}
		if e.GetContainerEventType() == runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT {
			gone++
		}
	}
	list, err := s.runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return err
	}
	s.say("ListContainers", "", "%s", each(list.GetContainers(), (*runtimeapi.Container).GetId))
	return nil
}

// say prints a call and what came of it; further lines stand below the first.
func (s *session) say(method, what, format string, args ...any) {
	result := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "\n"+strings.Repeat(" ", 51))
	fmt.Fprintf(s.out, "  %-18s %-28s  %s\n", method, what, result)
}

func each[T any](items []T, text func(T) string) string {
	if len(items) == 0 {
		return "none"
	}
	lines := make([]string, len(items))
	for i, item := range items {
		lines[i] = text(item)
	}
	return strings.Join(lines, "\n")
}

// short cuts a long id down to what people look at, and keeps what stands before it.
func short(id string) string {
	hex := len(id) - len(strings.TrimRight(id, "0123456789abcdef"))
	if hex > 12 {
		return id[:len(id)-hex+12]
	}
	return id
}
