package criadapter

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/rewrite"
)

// snapshot is what the lists of a runtime said: enough to see what has happened
// since.
type snapshot struct {
	pods       map[string]uint64    // :: sandbox → its state
	containers map[string]container // :: container → ...
	statuses   map[string][]byte    // :: sandbox → its latest PodSandboxStatus, for when it is gone
}

type container struct {
	pod   string
	state uint64
}

func newSnapshot() *snapshot {
	return &snapshot{pods: map[string]uint64{}, containers: map[string]container{}, statuses: map[string][]byte{}}
}

// Paths into the lists and what is made of them.
var (
	podID          = mustPath(&runtimeapi.PodSandbox{}, "id")
	podState       = mustPath(&runtimeapi.PodSandbox{}, "state")
	containerID    = mustPath(&runtimeapi.Container{}, "id")
	containerPod   = mustPath(&runtimeapi.Container{}, "pod_sandbox_id")
	containerState = mustPath(&runtimeapi.Container{}, "state")
	listedPods     = mustPath(&runtimeapi.ListPodSandboxResponse{}, "items")
	listedOnes     = mustPath(&runtimeapi.ListContainersResponse{}, "containers")
	podAsked       = mustPath(&runtimeapi.PodSandboxStatusRequest{}, "pod_sandbox_id")
	podAnswered    = mustPath(&runtimeapi.PodSandboxStatusResponse{}, "status")
	oneAsked       = mustPath(&runtimeapi.ContainerStatusRequest{}, "container_id")
	oneAnswered    = mustPath(&runtimeapi.ContainerStatusResponse{}, "status")
	eventFields    = (&runtimeapi.ContainerEventResponse{}).ProtoReflect().Descriptor().Fields()
)

func mustPath(m proto.Message, text string) *rewrite.Path {
	p, err := rewrite.ParsePath(m.ProtoReflect().Descriptor(), text)
	if err != nil {
		panic(fmt.Sprintf("cri-api has changed: %v", err))
	}
	return p
}

// look reads the lists again, and returns what happened since the last look as
// events if tell is set.
func (s *snapshot) look(ctx context.Context, conn grpc.ClientConnInterface, tell bool) ([]*codec.Frame, error) {
	now := newSnapshot()
	var pods, ones codec.Frame
	if err := conn.Invoke(ctx, runtimeapi.RuntimeService_ListPodSandbox_FullMethodName, &codec.Frame{}, &pods); err != nil {
		return nil, err
	}
	if err := conn.Invoke(ctx, runtimeapi.RuntimeService_ListContainers_FullMethodName, &codec.Frame{}, &ones); err != nil {
		return nil, err
	}
	var order, podOrder []string
	err := listedPods.All(pods.Bytes(), func(item []byte) error {
		id, _, err := podID.Lookup(item)
		if err != nil {
			return err
		}
		podOrder = append(podOrder, string(id))
		now.pods[string(id)], _, err = podState.LookupVarint(item)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading a list of pods: %w", err)
	}
	err = listedOnes.All(ones.Bytes(), func(item []byte) error {
		id, _, err := containerID.Lookup(item)
		if err != nil {
			return err
		}
		pod, _, err := containerPod.Lookup(item)
		if err != nil {
			return err
		}
		state, _, err := containerState.LookupVarint(item)
		order = append(order, string(id))
		now.containers[string(id)] = container{string(pod), state}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading a list of containers: %w", err)
	}
	var events []*codec.Frame
	if tell {
		e := &teller{ctx: ctx, conn: conn, old: s, now: now, order: order, told: map[string][]byte{}}
		events = e.tell(podOrder)
	}
	for pod := range now.pods {
		if b := s.statuses[pod]; now.statuses[pod] == nil && b != nil {
			now.statuses[pod] = b
		}
	}
	*s = *now
	return events, nil
}

// teller makes events of the difference between two snapshots.
type teller struct {
	ctx      context.Context
	conn     grpc.ClientConnInterface
	old, now *snapshot
	order    []string          // containers, as they were listed
	told     map[string][]byte // :: sandbox → the statuses in all events about it
	events   []*codec.Frame
}

const (
	created = runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT
	started = runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT
	stopped = runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT
	deleted = runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT
)

// tell goes in the order in which a runtime does things: pods come before their
// containers, and go after them.
func (t *teller) tell(pods []string) []*codec.Frame {
	var ended []string
	for _, pod := range pods {
		old, was := t.old.pods[pod]
		if !was {
			t.event(pod, created, pod)
			t.event(pod, started, pod)
			old = uint64(runtimeapi.PodSandboxState_SANDBOX_READY)
		}
		if now := t.now.pods[pod]; now != old && now == uint64(runtimeapi.PodSandboxState_SANDBOX_NOTREADY) {
			ended = append(ended, pod)
		}
	}
	for _, id := range t.order {
		one := t.now.containers[id]
		old, was := t.old.containers[id]
		if !was {
			t.event(id, created, one.pod)
		}
		if old.state == one.state && was {
			continue
		}
		running, exited := uint64(runtimeapi.ContainerState_CONTAINER_RUNNING), uint64(runtimeapi.ContainerState_CONTAINER_EXITED)
		if one.state == running || one.state == exited && old.state != running {
			t.event(id, started, one.pod)
		}
		if one.state == exited {
			t.event(id, stopped, one.pod)
		}
	}
	for _, pod := range ended {
		t.event(pod, stopped, pod)
	}
	for id, one := range t.old.containers {
		if _, is := t.now.containers[id]; !is {
			t.event(id, deleted, one.pod)
		}
	}
	for pod := range t.old.pods {
		if _, is := t.now.pods[pod]; !is {
			t.event(pod, deleted, pod)
		}
	}
	return t.events
}

// event appends one event. It shows the pod as it is now, which is what kubelet
// takes from an event.
func (t *teller) event(id string, what runtimeapi.ContainerEventType, pod string) {
	number := func(field string) protoreflect.FieldNumber {
		return eventFields.ByName(protoreflect.Name(field)).Number()
	}
	b := protowire.AppendString(protowire.AppendTag(nil, number("container_id"), protowire.BytesType), id)
	if what != 0 {
		b = protowire.AppendVarint(protowire.AppendTag(b, number("container_event_type"), protowire.VarintType), uint64(what))
	}
	b = protowire.AppendVarint(protowire.AppendTag(b, number("created_at"), protowire.VarintType), uint64(time.Now().UnixNano()))
	statuses, ok := t.told[pod]
	if !ok {
		statuses = t.statuses(pod, number("pod_sandbox_status"), number("containers_statuses"))
		t.told[pod] = statuses
	}
	t.events = append(t.events, codec.NewFrame(append(b, statuses...)))
}

// statuses returns the fields of an event that show a pod.
func (t *teller) statuses(pod string, podField, containerField protoreflect.FieldNumber) []byte {
	var b []byte
	if _, there := t.now.pods[pod]; there {
		if s := t.ask(runtimeapi.RuntimeService_PodSandboxStatus_FullMethodName, podAsked, pod, podAnswered); s != nil {
			t.now.statuses[pod] = s
		}
	}
	s := t.now.statuses[pod]
	if s == nil {
		s = t.old.statuses[pod]
	}
	if s != nil {
		b = protowire.AppendBytes(protowire.AppendTag(b, podField, protowire.BytesType), s)
	}
	for _, id := range t.order {
		if t.now.containers[id].pod != pod {
			continue
		}
		if s := t.ask(runtimeapi.RuntimeService_ContainerStatus_FullMethodName, oneAsked, id, oneAnswered); s != nil {
			b = protowire.AppendBytes(protowire.AppendTag(b, containerField, protowire.BytesType), s)
		}
	}
	return b
}

// ask returns a status, nil if there is none.
func (t *teller) ask(method string, asked *rewrite.Path, id string, answered *rewrite.Path) []byte {
	var reply codec.Frame
	if err := t.conn.Invoke(t.ctx, method, codec.NewFrame(asked.Append(nil, []byte(id))), &reply); err != nil {
		return nil
	}
	s, _, err := answered.Lookup(reply.Bytes())
	if err != nil {
		return nil
	}
	return s
}
