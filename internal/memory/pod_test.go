package memory_test

import (
	"context"
	"path"
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
		answer = &runtimeapi.ListContainersResponse{Containers: []*runtimeapi.Container{{Id: "c1", PodSandboxId: "p1"}, {Id: "c2", PodSandboxId: "p2"}}}
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

// The containers of a pod end when the pod is stopped.
func TestStoppingAPodOutdatesItsContainers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cri, err := criadapter.Config(criadapter.Options{})
		require.NoError(t, err)
		runtime := &pods{}
		conn, err := memory.New(memory.Config{Name: "beta.io", Conn: runtime, Schema: cri.Schema, Package: "runtime.v1", Spec: cri.Profile.Known})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- conn.Run(ctx) }()
		time.Sleep(5 * time.Second) // memory has all statuses
		call := func(method string, request proto.Message) error {
			b, err := proto.Marshal(request)
			require.NoError(t, err)
			return conn.Invoke(ctx, "/runtime.v1.RuntimeService/"+method, codec.NewFrame(b), &codec.Frame{})
		}
		runtime.mute.Store(true) // the new status of c1 does not come
		require.NoError(t, call("StopPodSandbox", &runtimeapi.StopPodSandboxRequest{PodSandboxId: "p1"}))
		runtime.down.Store(true)
		err = call("ContainerStatus", &runtimeapi.ContainerStatusRequest{ContainerId: "c1"})
		assert.Equal(t, codes.Unavailable, status.Code(err), "the old status says that it is running")
		assert.NoError(t, call("ContainerStatus", &runtimeapi.ContainerStatusRequest{ContainerId: "c2"}))
		cancel()
		require.NoError(t, <-ended)
	})
}
