package memory_test

import (
	"context"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/internal/memory"
)

// pods is a runtime with the container c1 of pod p1, and c2 of p2.
type pods struct {
	grpc.ClientConnInterface
	down, mute atomic.Bool
	unseen     atomic.Bool // p1 has a container c3, too
	late       atomic.Bool // ListContainers takes three seconds
}

func (p *pods) Invoke(_ context.Context, name string, args, reply any, _ ...grpc.CallOption) error {
	if p.down.Load() {
		return unreachable{}
	}
	request, err := codec.FrameOf(args)
	if err != nil {
		return err
	}
	var answer proto.Message = &runtimeapi.VersionResponse{}
	switch path.Base(name) {
	case "ListPodSandbox":
		answer = &runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{{Id: "p1"}, {Id: "p2"}}}
	case "ListContainers":
		all := []*runtimeapi.Container{{Id: "c1", PodSandboxId: "p1"}, {Id: "c2", PodSandboxId: "p2"}}
		if p.unseen.Load() {
			all = append(all, &runtimeapi.Container{Id: "c3", PodSandboxId: "p1"})
		}
		answer = &runtimeapi.ListContainersResponse{Containers: all}
		if p.late.Load() {
			time.Sleep(3 * time.Second)
		}
	case "ContainerStatus":
		if p.mute.Load() {
			return status.Error(codes.Internal, "not now")
		}
		var r runtimeapi.ContainerStatusRequest
		if err := proto.Unmarshal(request.Bytes(), &r); err != nil {
			return err
		}
		answer = &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{Id: r.ContainerId}}
	}
	b, err := proto.Marshal(answer)
	if err != nil {
		return err
	}
	return codec.Decode(reply, codec.NewFrame(b))
}

// watchPods makes a connection to a runtime, and waits until memory has all lists and statuses. call makes a call through it.
func watchPods(t *testing.T, runtime grpc.ClientConnInterface) (call func(method string, request proto.Message) (*codec.Frame, error)) {
	cri, err := criadapter.Config(criadapter.Options{})
	require.NoError(t, err)
	conn, err := memory.New(memory.Config{Name: "beta.io", Conn: runtime, Schema: cri.Schema, Package: "runtime.v1", Spec: cri.Profile.Known, Alive: runtimeapi.RuntimeService_Version_FullMethodName})
	require.NoError(t, err)
	names := map[string]string{}
	for _, m := range cri.Schema.Methods() {
		if strings.HasPrefix(m.Name, "/runtime.v1.") {
			names[path.Base(m.Name)] = m.Name
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- conn.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-ended)
	})
	time.Sleep(5 * time.Second)
	return func(method string, request proto.Message) (*codec.Frame, error) {
		b, err := proto.Marshal(request)
		require.NoError(t, err)
		reply := &codec.Frame{}
		return reply, conn.Invoke(ctx, names[method], codec.NewFrame(b), reply)
	}
}

// The containers of a pod end when the pod is stopped.
func TestStoppingAPodOutdatesItsContainers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runtime := &pods{}
		call := watchPods(t, runtime)
		runtime.mute.Store(true) // the new status of c1 does not come
		_, err := call("StopPodSandbox", &runtimeapi.StopPodSandboxRequest{PodSandboxId: "p1"})
		require.NoError(t, err)
		runtime.down.Store(true)
		_, err = call("ContainerStatus", &runtimeapi.ContainerStatusRequest{ContainerId: "c1"})
		assert.Equal(t, codes.Unavailable, status.Code(err), "the old status says that it is running")
		_, err = call("ContainerStatus", &runtimeapi.ContainerStatusRequest{ContainerId: "c2"})
		assert.NoError(t, err)
	})
}

// The client of CreateContainer was gone before the answer, so memory does not know of c3 when its pod is removed. An answer
// to a list from before the removal shows c3; it was listed again.
func TestRemovingAPodRemovesContainersThatNobodyHasSeen(t *testing.T) {
	for name, request := range map[string]*runtimeapi.ListContainersRequest{
		"all":           {},
		"with a filter": {Filter: &runtimeapi.ContainerFilter{PodSandboxId: "p1"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				runtime := &pods{}
				call := watchPods(t, runtime)
				runtime.unseen.Store(true)
				runtime.late.Store(true)
				go func() { _, _ = call("ListContainers", request) }()
				time.Sleep(100 * time.Millisecond)
				_, err := call("RemovePodSandbox", &runtimeapi.RemovePodSandboxRequest{PodSandboxId: "p1"})
				require.NoError(t, err)
				time.Sleep(2950 * time.Millisecond) // the answer from before the removal has come, and no other
				reply, err := call("ListContainers", &runtimeapi.ListContainersRequest{})
				require.NoError(t, err)
				var listed runtimeapi.ListContainersResponse
				require.NoError(t, proto.Unmarshal(reply.Bytes(), &listed))
				require.Len(t, listed.Containers, 1)
				assert.Equal(t, "c2", listed.Containers[0].Id)
			})
		})
	}
}
