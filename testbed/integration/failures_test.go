package integration

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// A failing call. Its request uses the names of one end or the other.
type failing struct {
	method  string
	request func(n names) proto.Message
}

// names translate names of a runtime into those of the end that makes the call.
type names struct {
	id, image func(back string) string
	pod       *runtimeapi.PodSandboxConfig // of a running pod
	podID     string                       // the pod's back id
	running   string                       // back id of a running container
	exited    string
}

// failures are calls that a runtime refuses. kubelet, criproxy and its users tell them apart by code and message:
// kubelet looks for NotFound and Unimplemented, takes DeadlineExceeded for a failed probe, and compares the
// beginning of messages.
func failures(b *bench, private string) map[string]failing {
	none := strings.Repeat("0", 64)
	missing := b.reg.Image("testbed/missing:1")
	container := func(n names, image string) *runtimeapi.CreateContainerRequest {
		config := runtimes.ContainerConfig("other", n.image(image))
		return &runtimeapi.CreateContainerRequest{PodSandboxId: n.id(n.podID), Config: config, SandboxConfig: n.pod}
	}
	pull := func(image string) func(n names) proto.Message {
		return func(n names) proto.Message {
			return &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: n.image(image)}}
		}
	}
	return map[string]failing{
		"status of no container":   {rt("ContainerStatus"), func(n names) proto.Message { return &runtimeapi.ContainerStatusRequest{ContainerId: n.id(none)} }},
		"status of a short no one": {rt("ContainerStatus"), func(n names) proto.Message { return &runtimeapi.ContainerStatusRequest{ContainerId: n.id("nope")} }},
		"status of no pod":         {rt("PodSandboxStatus"), func(n names) proto.Message { return &runtimeapi.PodSandboxStatusRequest{PodSandboxId: n.id(none)} }},
		"stats of no container":    {rt("ContainerStats"), func(n names) proto.Message { return &runtimeapi.ContainerStatsRequest{ContainerId: n.id(none)} }},
		"stats of no pod":          {rt("PodSandboxStats"), func(n names) proto.Message { return &runtimeapi.PodSandboxStatsRequest{PodSandboxId: n.id(none)} }},
		"start of no container":    {rt("StartContainer"), func(n names) proto.Message { return &runtimeapi.StartContainerRequest{ContainerId: n.id(none)} }},
		"start of a running one":   {rt("StartContainer"), func(n names) proto.Message { return &runtimeapi.StartContainerRequest{ContainerId: n.id(n.running)} }},
		"exec in no container": {rt("ExecSync"), func(n names) proto.Message {
			return &runtimeapi.ExecSyncRequest{ContainerId: n.id(none), Cmd: []string{"app"}}
		}},
		"exec in an exited one": {rt("ExecSync"), func(n names) proto.Message {
			return &runtimeapi.ExecSyncRequest{ContainerId: n.id(n.exited), Cmd: []string{"app"}}
		}},
		"exec of no command": {rt("ExecSync"), func(n names) proto.Message {
			return &runtimeapi.ExecSyncRequest{ContainerId: n.id(n.running), Cmd: []string{"none"}, Timeout: 20}
		}},
		"exec that takes too long": {rt("ExecSync"), func(n names) proto.Message {
			return &runtimeapi.ExecSyncRequest{ContainerId: n.id(n.running), Cmd: []string{"app"}, Timeout: 1}
		}},
		"exec by URL in none": {rt("Exec"), func(n names) proto.Message {
			return &runtimeapi.ExecRequest{ContainerId: n.id(none), Cmd: []string{"app"}, Stdout: true}
		}},
		"exec by URL to nowhere": {rt("Exec"), func(n names) proto.Message {
			return &runtimeapi.ExecRequest{ContainerId: n.id(n.running), Cmd: []string{"app"}}
		}},
		"attach to none": {rt("Attach"), func(n names) proto.Message { return &runtimeapi.AttachRequest{ContainerId: n.id(none), Stdout: true} }},
		"port-forward to no pod": {rt("PortForward"), func(n names) proto.Message {
			return &runtimeapi.PortForwardRequest{PodSandboxId: n.id(none), Port: []int32{80}}
		}},
		"update of no container": {rt("UpdateContainerResources"), func(n names) proto.Message {
			return &runtimeapi.UpdateContainerResourcesRequest{ContainerId: n.id(none)}
		}},
		"update of no pod": {rt("UpdatePodSandboxResources"), func(n names) proto.Message {
			return &runtimeapi.UpdatePodSandboxResourcesRequest{PodSandboxId: n.id(none)}
		}},
		"log of no container":  {rt("ReopenContainerLog"), func(n names) proto.Message { return &runtimeapi.ReopenContainerLogRequest{ContainerId: n.id(none)} }},
		"log of an exited one": {rt("ReopenContainerLog"), func(n names) proto.Message { return &runtimeapi.ReopenContainerLogRequest{ContainerId: n.id(n.exited)} }},
		"checkpoint of a pod": {rt("CheckpointPod"), func(n names) proto.Message {
			return &runtimeapi.CheckpointPodRequest{PodSandboxId: n.id(n.podID), ContainerIds: []string{n.id(n.running)}}
		}},
		"checkpoint of no container": {rt("CheckpointContainer"), func(n names) proto.Message { return &runtimeapi.CheckpointContainerRequest{ContainerId: n.id(none)} }},
		"container of no image":      {rt("CreateContainer"), func(n names) proto.Message { return container(n, missing) }},
		"container of no image's id": {rt("CreateContainer"), func(n names) proto.Message { return container(n, "sha256:"+none) }},
		"container in no pod": {rt("CreateContainer"), func(n names) proto.Message {
			return &runtimeapi.CreateContainerRequest{PodSandboxId: n.id(none), Config: runtimes.ContainerConfig("app", ""), SandboxConfig: n.pod}
		}},
		"container without a name": {rt("CreateContainer"), func(n names) proto.Message {
			request := container(n, missing)
			request.Config.Metadata = nil
			return request
		}},
		"pod with no such handler": {rt("RunPodSandbox"), func(n names) proto.Message {
			return &runtimeapi.RunPodSandboxRequest{Config: n.pod, RuntimeHandler: "kata"}
		}},
		"pod that is there": {rt("RunPodSandbox"), func(n names) proto.Message { return &runtimeapi.RunPodSandboxRequest{Config: n.pod} }},
		"pod without a name": {rt("RunPodSandbox"), func(n names) proto.Message {
			return &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{Annotations: n.pod.Annotations}}
		}},
		"pull of a missing image":  {img("PullImage"), pull(missing)},
		"pull of a missing digest": {img("PullImage"), pull(b.reg.Image("testbed/app@sha256:" + none))},
		"pull of no proper name":   {img("PullImage"), pull("Not A Name")},
		"pull without a password":  {img("PullImage"), pull(private)},
		"pull from nobody":         {img("PullImage"), pull("127.0.0.1:1/testbed/app:1")},
	}
}

func TestFailuresReachClientsUnchanged(t *testing.T) {
	b := start(t)
	private, err := runtimes.StartRegistry(runtimes.RegistryConfig{App: testbed.Require(t, build.App).App, Username: "me", Password: "secret"})
	require.NoError(t, err)
	defer private.Close()
	c, front := dial(t, b.proxy.Socket(), v1), raw(t, b.proxy.Socket())
	seen := map[codes.Code]int{}
	for _, s := range b.sides() {
		t.Run(s.Containerd.Version, func(t *testing.T) {
			p := run(t, c, s, "failures")
			running := p.start(t)
			config := p.container("exit", "0")
			config.Metadata.Name = "exited"
			exited := p.create(t, config)
			_, err := c.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: exited})
			require.NoError(t, err)
			eventually(t, func() error {
				if p.status(t, exited).State != runtimeapi.ContainerState_CONTAINER_EXITED {
					return assert.AnError
				}
				return nil
			})
			same := func(back string) string { return back }
			at := names{id: same, image: same, pod: p.config, podID: p.back(t), running: s.bare(t, running), exited: s.bare(t, exited)}
			through := at
			through.id, through.image = s.id, s.image
			// A runtime makes new ids for each call.
			stable := func(o outcome) []any {
				message := regexp.MustCompile(`[0-9a-f]{64}`).ReplaceAllStringFunc(o.status.Message(), func(id string) string {
					if slices.Contains([]string{at.podID, at.running, at.exited, strings.Repeat("0", 64)}, id) {
						return id
					}
					return "ID"
				})
				return []any{o.replies, o.header, o.trailer, o.status.Code(), message, len(o.status.Details()), o.status.Proto().GetDetails()}
			}
			direct := raw(t, s.Socket())
			for name, f := range failures(b, private.Image("testbed/app:1")) {
				want := call(t, t.Context(), direct, f.method, marshal(t, f.request(at)), nil)
				got := call(t, t.Context(), front, f.method, marshal(t, f.request(through)), nil)
				require.NotEqual(t, codes.OK, want.status.Code(), name)
				assert.Equal(t, stable(want), stable(got), name)
				seen[want.status.Code()]++
			}
		})
	}
	for _, code := range []codes.Code{codes.NotFound, codes.InvalidArgument, codes.Unknown, codes.DeadlineExceeded, codes.Unimplemented} {
		assert.Positive(t, seen[code], "%s is among them: %v", code, seen)
	}
	t.Log(seen)
}
