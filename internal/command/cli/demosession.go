package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/observe/calls"
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
	err     error      // of the first call that failed and should not have
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
	version := made(ctx, s, s.runtime.Version, &runtimeapi.VersionRequest{})
	s.say("Version", "", "%s %s, as the primary says", version.GetRuntimeName(), version.GetRuntimeVersion())
	if s.err == nil {
		s.events, s.err = s.runtime.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	}
	for _, p := range pods {
		s.start(ctx, p)
	}
	s.inspect(ctx, pods)
	s.mistakes(ctx)
	s.remove(ctx, pods)
	return s.err
}

// made makes a call of the session, and returns its reply. Once a call has failed, it makes no further ones, and returns nil.
func made[Request, Reply any](ctx context.Context, s *session, call func(context.Context, *Request, ...grpc.CallOption) (*Reply, error), request *Request) (reply *Reply) {
	if s.err == nil {
		reply, s.err = call(ctx, request)
	}
	return reply
}

// start pulls the image of a pod and runs it.
func (s *session) start(ctx context.Context, p *demoPod) {
	labels := map[string]string{ // the labels that kubelet sets, which crictl shows
		"io.kubernetes.pod.name": p.name, "io.kubernetes.pod.namespace": "default", "io.kubernetes.pod.uid": "uid-" + p.name,
	}
	p.config = &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: p.name, Namespace: "default", Uid: "uid-" + p.name},
		Labels:       labels,
		LogDirectory: filepath.Join(s.logs, "default_"+p.name+"_uid-"+p.name),
	}
	p.sandbox = made(ctx, s, s.runtime.RunPodSandbox, &runtimeapi.RunPodSandboxRequest{Config: p.config, RuntimeHandler: p.handler}).GetPodSandboxId()
	s.say("RunPodSandbox", p.name, "%s    %s", calls.ShortID(p.sandbox), p.why)
	image := made(ctx, s, s.image.PullImage, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: p.image}, SandboxConfig: p.config})
	s.say("PullImage", p.image, "%s", calls.ShortID(image.GetImageRef()))
	p.container = made(ctx, s, s.runtime.CreateContainer, &runtimeapi.CreateContainerRequest{
		PodSandboxId: p.sandbox, SandboxConfig: p.config,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "main"},
			Image:    &runtimeapi.ImageSpec{Image: image.GetImageRef(), UserSpecifiedImage: p.image},
			Labels:   labels,
			LogPath:  "main/0.log",
		},
	}).GetContainerId()
	made(ctx, s, s.runtime.StartContainer, &runtimeapi.StartContainerRequest{ContainerId: p.container})
	s.say("StartContainer", calls.ShortID(p.container), "ok")
}

// inspect asks for lists, status, events and output.
func (s *session) inspect(ctx context.Context, pods []*demoPod) {
	if s.err == nil {
		s.err = s.list(ctx)
	}
	images := made(ctx, s, s.image.ListImages, &runtimeapi.ListImagesRequest{})
	s.say("ListImages", "", "%s", each(images.GetImages(), func(i *runtimeapi.Image) string { return strings.Join(i.GetRepoTags(), " ") }))
	for _, p := range pods {
		st := made(ctx, s, s.runtime.ContainerStatus, &runtimeapi.ContainerStatusRequest{ContainerId: p.container})
		s.say("ContainerStatus", calls.ShortID(p.container), "%s", strings.TrimPrefix(st.GetStatus().GetState().String(), "CONTAINER_"))
		if s.err == nil {
			s.err = s.sayExec(ctx, p)
		}
	}
	var seen []string
	for s.err == nil && len(seen) < 2 { // the start of a container on each runtime
		e := s.event()
		for _, p := range pods {
			if e.GetContainerId() == p.container && e.GetContainerEventType() == runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT {
				seen = append(seen, calls.ShortID(p.container)+" started")
			}
		}
	}
	slices.Sort(seen)
	s.say("GetContainerEvents", "", "%s", strings.Join(seen, "\n"))
}

// event returns the next event, nil if there is none.
func (s *session) event() (e *runtimeapi.ContainerEventResponse) {
	e, s.err = s.events.Recv()
	return e
}

// mistakes shows what a wrong name gets.
func (s *session) mistakes(ctx context.Context) {
	if s.err != nil {
		return
	}
	_, err := s.runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: "gamma.io__0123456789ab"})
	if err == nil {
		s.err = errors.New("a container of no runtime was stopped")
	}
	s.say("StopContainer", "gamma.io__0123456789ab", "%s: %s", status.Code(err), status.Convert(err).Message())
}

// remove takes the pods down, and shows that nothing is left.
func (s *session) remove(ctx context.Context, pods []*demoPod) {
	for _, p := range pods {
		made(ctx, s, s.runtime.StopPodSandbox, &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.sandbox})
		made(ctx, s, s.runtime.RemovePodSandbox, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.sandbox})
		s.say("RemovePodSandbox", calls.ShortID(p.sandbox), "ok")
		made(ctx, s, s.image.RemoveImage, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: p.image}})
		s.say("RemoveImage", p.image, "ok")
	}
	for gone := 0; s.err == nil && gone < 2*len(pods); { // the sandbox and the container of each, so that a recording has all events
		if s.event().GetContainerEventType() == runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT {
			gone++
		}
	}
	list := made(ctx, s, s.runtime.ListContainers, &runtimeapi.ListContainersRequest{})
	s.say("ListContainers", "", "%s", each(list.GetContainers(), (*runtimeapi.Container).GetId))
}

// say prints a call and what came of it, unless one has failed; further lines stand below the first.
func (s *session) say(method, what, format string, args ...any) {
	if s.err != nil {
		return
	}
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
