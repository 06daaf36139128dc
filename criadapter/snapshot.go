package criadapter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/base/wire"
	"github.com/criproxy/criproxy/rewrite"
)

// A snapshot holds the pods and containers of a runtime, with their states. Its owner may change the maps: polls gives each
// client a copy of them, with the same bytes and the same order.
type snapshot struct {
	pods       map[string]pod
	containers map[string]container
	order      order
	asked      time.Time // when the runtime was asked for the lists
}

// order is the order in which the runtime listed them. It is immutable, and empty for a snapshot
// that is not from lists.
type order struct{ pods, containers []string }

type pod struct {
	state  uint64
	status []byte // a PodSandboxStatus, for events when the pod is gone
}

type container struct {
	pod   string
	state uint64
}

func newSnapshot() *snapshot {
	return &snapshot{pods: map[string]pod{}, containers: map[string]container{}, asked: time.Now()}
}

// The states that events are about.
const (
	podReady    = uint64(runtimeapi.PodSandboxState_SANDBOX_READY)
	podNotReady = uint64(runtimeapi.PodSandboxState_SANDBOX_NOTREADY)
	running     = uint64(runtimeapi.ContainerState_CONTAINER_RUNNING)
	exited      = uint64(runtimeapi.ContainerState_CONTAINER_EXITED)
)

// Paths into the lists.
var (
	podID          = mustPath(&runtimeapi.PodSandbox{}, "id")
	podState       = mustPath(&runtimeapi.PodSandbox{}, "state")
	containerID    = mustPath(&runtimeapi.Container{}, "id")
	containerPod   = mustPath(&runtimeapi.Container{}, "pod_sandbox_id")
	containerState = mustPath(&runtimeapi.Container{}, "state")
	listedPods     = mustPath(&runtimeapi.ListPodSandboxResponse{}, "items")
	listedOnes     = mustPath(&runtimeapi.ListContainersResponse{}, "containers")
)

func mustPath(m proto.Message, text string) *rewrite.Path {
	p, err := rewrite.ParsePath(m.ProtoReflect().Descriptor(), text)
	if err != nil {
		panic(fmt.Sprintf("cri-api has changed: %v", err))
	}
	return p
}

// askTimeout bounds how long a runtime may take to answer a call of ours, which has no client's
// deadline.
const askTimeout = 10 * time.Second

// ask makes a unary call, and reports whether the answer came from the cache.
func ask(ctx context.Context, conn grpc.ClientConnInterface, method string, request []byte) (reply []byte, cached bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	call := &codec.Call{Method: method, Request: codec.NewFrame(request)}
	if err := codec.CallerOf(conn).Call(ctx, call); err != nil {
		return nil, false, err
	}
	return call.Reply.Bytes(), len(call.Header[backend.HeaderKey]) > 0, nil
}

// takeSnapshot lists the pods and containers of a runtime, and reports whether some of the answer came
// from the cache. It lists the pods first: a container that appears in between has a pod that the snapshot may lack, and
// difference.show asks for that.
func takeSnapshot(ctx context.Context, conn grpc.ClientConnInterface) (s *snapshot, cached bool, err error) {
	s = newSnapshot()
	pods, oldPods, err := ask(ctx, conn, runtimeapi.RuntimeService_ListPodSandbox_FullMethodName, nil)
	if err != nil {
		return nil, false, err
	}
	containers, oldContainers, err := ask(ctx, conn, runtimeapi.RuntimeService_ListContainers_FullMethodName, nil)
	if err != nil {
		return nil, false, err
	}
	if err := listedPods.All(pods, s.addPod); err != nil {
		return nil, false, fmt.Errorf("reading a list of pods: %w", err)
	}
	if err := listedOnes.All(containers, s.addContainer); err != nil {
		return nil, false, fmt.Errorf("reading a list of containers: %w", err)
	}
	return s, oldPods || oldContainers, nil
}

func (s *snapshot) addPod(item []byte) error {
	id, _, idErr := podID.Lookup(item)
	state, _, stateErr := podState.LookupVarint(item)
	if err := errors.Join(idErr, stateErr); err != nil {
		return err
	}
	s.pods[string(id)] = pod{state, statusOf(item)}
	s.order.pods = append(s.order.pods, string(id))
	return nil
}

func (s *snapshot) addContainer(item []byte) error {
	id, _, idErr := containerID.Lookup(item)
	pod, _, podErr := containerPod.Lookup(item)
	state, _, stateErr := containerState.LookupVarint(item)
	if err := errors.Join(idErr, podErr, stateErr); err != nil {
		return err
	}
	s.containers[string(id)] = container{string(pod), state}
	s.order.containers = append(s.order.containers, string(id))
	return nil
}

// statusOf makes a PodSandboxStatus of the PodSandbox in a list: of the fields id, metadata, state
// and created_at, which have the same numbers in both.
func statusOf(item []byte) []byte {
	var status []byte
	for f, err := range wire.Fields(item) {
		if err != nil {
			return nil // a pod without a known status
		}
		if f.Number <= 4 {
			status = append(status, f.Raw...)
		}
	}
	return status
}
