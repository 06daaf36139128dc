package memory_test

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/internal/memory"
)

// listless is a runtime that confirms each change, and whose lists can hang.
type listless struct {
	grpc.ClientConnInterface
	hangs atomic.Bool
}

func (r *listless) Invoke(ctx context.Context, name string, _, reply any, _ ...grpc.CallOption) error {
	var answer proto.Message = &runtimeapi.VersionResponse{} // empty, as are most others
	switch method := path.Base(name); method {
	case "ListPodSandbox":
		answer = &runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{{Id: "p1"}, {Id: "p2"}}}
	case "ListContainers":
		answer = &runtimeapi.ListContainersResponse{Containers: []*runtimeapi.Container{
			{Id: "c1", PodSandboxId: "p1", State: runtimeapi.ContainerState_CONTAINER_RUNNING}, {Id: "c2", PodSandboxId: "p2"},
		}}
	case "ListImages":
		answer = &runtimeapi.ListImagesResponse{Images: []*runtimeapi.Image{{Id: "i1", RepoTags: []string{"app:1"}}}}
	case "RunPodSandbox", "RestorePod":
		answer = &runtimeapi.RunPodSandboxResponse{PodSandboxId: "p3"}
	case "CreateContainer":
		answer = &runtimeapi.CreateContainerResponse{ContainerId: "c3"}
	case "PullImage":
		answer = &runtimeapi.PullImageResponse{ImageRef: "i2"}
	}
	if strings.HasPrefix(path.Base(name), "List") && r.hangs.Load() {
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
	b, err := proto.Marshal(answer)
	if err != nil {
		return err
	}
	return codec.Decode(reply, codec.NewFrame(b))
}

// shows returns the ids and states in the answer to a list.
func shows(t *testing.T, list string, answer *codec.Frame) string {
	var all []string
	var pods runtimeapi.ListPodSandboxResponse
	var containers runtimeapi.ListContainersResponse
	var images runtimeapi.ListImagesResponse
	require.NoError(t, proto.Unmarshal(answer.Bytes(), map[string]proto.Message{"ListPodSandbox": &pods, "ListContainers": &containers, "ListImages": &images}[list]))
	for _, p := range pods.Items {
		all = append(all, p.Id+" "+strings.TrimPrefix(p.State.String(), "SANDBOX_"))
	}
	for _, c := range containers.Containers {
		all = append(all, c.Id+" "+strings.TrimPrefix(c.State.String(), "CONTAINER_"))
	}
	for _, i := range images.Images {
		all = append(all, i.Id)
	}
	return strings.Join(all, ", ")
}

// After a confirmed change, lists show what it did, and wait for a runtime that hangs no longer than their budget. The
// exceptions are those where only the runtime knows what became of its items; a list waits for that, and then shows how
// they were.
func TestAListShowsEachConfirmedChangeOfARuntimeThatHangs(t *testing.T) {
	before := map[string]string{"ListPodSandbox": "p1 READY, p2 READY", "ListContainers": "c1 RUNNING, c2 CREATED", "ListImages": "i1"}
	type lists = map[string]string
	cases := []struct {
		method  string
		request proto.Message
		shown   lists  // where they differ from those before
		waits   string // the list that waits
	}{
		{"RunPodSandbox", &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{}}, lists{"ListPodSandbox": "p1 READY, p2 READY, p3 READY"}, ""},
		{"StopPodSandbox", &runtimeapi.StopPodSandboxRequest{PodSandboxId: "p1"}, lists{"ListPodSandbox": "p1 NOTREADY, p2 READY", "ListContainers": "c1 EXITED, c2 CREATED"}, ""},
		{"StopPodSandbox", &runtimeapi.StopPodSandboxRequest{PodSandboxId: "p2"}, lists{"ListPodSandbox": "p1 READY, p2 NOTREADY"}, "ListContainers"}, // c2 may have exited, or not
		{"RemovePodSandbox", &runtimeapi.RemovePodSandboxRequest{PodSandboxId: "p1"}, lists{"ListPodSandbox": "p2 READY", "ListContainers": "c2 CREATED"}, ""},
		{"UpdatePodSandboxResources", &runtimeapi.UpdatePodSandboxResourcesRequest{PodSandboxId: "p1"}, nil, ""},
		{"CheckpointPod", &runtimeapi.CheckpointPodRequest{PodSandboxId: "p1"}, nil, ""},
		{"RestorePod", &runtimeapi.RestorePodRequest{Config: &runtimeapi.PodSandboxConfig{}}, lists{"ListPodSandbox": "p1 READY, p2 READY, p3 READY"}, "ListContainers"},
		{"CreateContainer", &runtimeapi.CreateContainerRequest{PodSandboxId: "p1"}, lists{"ListContainers": "c1 RUNNING, c2 CREATED, c3 CREATED"}, ""},
		{"StartContainer", &runtimeapi.StartContainerRequest{ContainerId: "c2"}, lists{"ListContainers": "c1 RUNNING, c2 RUNNING"}, ""},
		{"StopContainer", &runtimeapi.StopContainerRequest{ContainerId: "c1"}, lists{"ListContainers": "c1 EXITED, c2 CREATED"}, ""},
		{"RemoveContainer", &runtimeapi.RemoveContainerRequest{ContainerId: "c1"}, lists{"ListContainers": "c2 CREATED"}, ""},
		{"UpdateContainerResources", &runtimeapi.UpdateContainerResourcesRequest{ContainerId: "c1"}, nil, ""},
		{"CheckpointContainer", &runtimeapi.CheckpointContainerRequest{ContainerId: "c1"}, nil, ""},
		{"ReopenContainerLog", &runtimeapi.ReopenContainerLogRequest{ContainerId: "c1"}, nil, ""},
		{"ExecSync", &runtimeapi.ExecSyncRequest{ContainerId: "c1"}, nil, ""},
		{"Exec", &runtimeapi.ExecRequest{ContainerId: "c1"}, nil, ""},
		{"Attach", &runtimeapi.AttachRequest{ContainerId: "c1"}, nil, ""},
		{"PortForward", &runtimeapi.PortForwardRequest{PodSandboxId: "p1"}, nil, ""},
		{"UpdateRuntimeConfig", &runtimeapi.UpdateRuntimeConfigRequest{}, nil, ""},
		{"PullImage", &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: "app:2"}}, nil, "ListImages"}, // nobody has told the size of i2
		{"RemoveImage", &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: "i1"}}, lists{"ListImages": ""}, ""},
		{"RemoveImage", &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: "app:1"}}, nil, "ListImages"}, // i1 may have gone, or its name
	}
	named := map[string]bool{}
	for _, c := range cases {
		named[c.method] = true
		t.Run(fmt.Sprint(c.method, " ", c.request), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				runtime := &listless{}
				call := watchPods(t, runtime)
				runtime.hangs.Store(true)
				_, err := call(c.method, c.request)
				require.NoError(t, err)
				var all sync.WaitGroup
				for list, want := range before {
					if shown, ok := c.shown[list]; ok {
						want = shown
					}
					all.Go(func() {
						began := time.Now()
						answer, err := call(list, &runtimeapi.ListImagesRequest{}) // as empty as those of the others
						took := time.Since(began)
						if assert.NoError(t, err) {
							assert.Equal(t, want, shows(t, list, answer), list)
						}
						if list == c.waits {
							assert.Equal(t, memory.DefaultSilence, took, list)
						} else {
							assert.LessOrEqual(t, took, memory.DefaultBudget, list)
						}
					})
				}
				all.Wait()
			})
		})
	}
	cri, err := criadapter.Config(criadapter.Options{})
	require.NoError(t, err)
	for _, m := range cri.Schema.Methods() {
		method := path.Base(m.Name)
		reads := slices.ContainsFunc(cri.Profile.Reads, func(pattern string) bool { ok, _ := path.Match(pattern, method); return ok })
		if strings.HasPrefix(m.Name, "/runtime.v1.") && !reads {
			assert.True(t, named[method], "%s has no case", method)
		}
	}
}
