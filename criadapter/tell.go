package criadapter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/rewrite"
)

// teller makes events from the difference between two snapshots.
type teller struct {
	ctx      context.Context
	conn     grpc.ClientConnInterface
	old, now *snapshot
	statuses map[string][]byte // :: sandbox → the statuses in all events about it
	unsure   map[string]error  // :: sandbox → why it cannot be shown as it is now
	events   []*codec.Frame
}

func newTeller(ctx context.Context, conn grpc.ClientConnInterface, old, now *snapshot) *teller {
	return &teller{ctx: ctx, conn: conn, old: old, now: now, statuses: map[string][]byte{}, unsure: map[string]error{}}
}

const (
	created = runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT
	started = runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT
	stopped = runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT
	deleted = runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT
)

// Paths into the statuses that events show, and the fields of an event.
var (
	podAsked    = mustPath(&runtimeapi.PodSandboxStatusRequest{}, "pod_sandbox_id")
	podAnswered = mustPath(&runtimeapi.PodSandboxStatusResponse{}, "status")
	oneAsked    = mustPath(&runtimeapi.ContainerStatusRequest{}, "container_id")
	oneAnswered = mustPath(&runtimeapi.ContainerStatusResponse{}, "status")

	eventID       = mustPath(&runtimeapi.ContainerEventResponse{}, "container_id")
	eventType     = mustPath(&runtimeapi.ContainerEventResponse{}, "container_event_type")
	eventTime     = mustPath(&runtimeapi.ContainerEventResponse{}, "created_at")
	eventPod      = mustPath(&runtimeapi.ContainerEventResponse{}, "pod_sandbox_status")
	eventStatuses = mustPath(&runtimeapi.ContainerEventResponse{}, "containers_statuses")
	statusState   = mustPath(&runtimeapi.PodSandboxStatus{}, "state")
)

// tell makes the events in the order in which a runtime does things: pods come before their
// containers, and go after them. It leaves the events of a pod whose present status it cannot
// get to the next time, and the pod in the snapshot as it was: kubelet takes the containers that
// an event shows for all that the pod has.
func (t *teller) tell() error {
	var ended []string
	for _, id := range t.now.order.pods {
		now := t.now.pods[id]
		old, was := t.old.pods[id]
		if !was {
			t.event(id, created, id)
			t.event(id, started, id)
			old.state = podReady
		}
		if now.state != old.state && now.state == podNotReady {
			ended = append(ended, id)
		}
	}
	for _, id := range t.now.order.containers {
		now := t.now.containers[id]
		old, was := t.old.containers[id]
		if !was {
			t.event(id, created, now.pod)
		}
		if old.state == now.state && was {
			continue
		}
		if now.state == running || now.state == exited && old.state != running {
			t.event(id, started, now.pod)
		}
		if now.state == exited {
			t.event(id, stopped, now.pod)
		}
	}
	for _, id := range ended {
		t.event(id, stopped, id)
	}
	for id, one := range t.old.containers {
		if _, is := t.now.containers[id]; !is {
			t.event(id, deleted, one.pod)
		}
	}
	for id := range t.old.pods {
		if _, is := t.now.pods[id]; !is {
			t.event(id, deleted, id)
		}
	}
	return t.leaveUntold()
}

// event appends one event. It shows the pod as it is now, which is what kubelet takes from
// an event.
func (t *teller) event(id string, what runtimeapi.ContainerEventType, pod string) {
	if _, done := t.statuses[pod]; !done && t.unsure[pod] == nil {
		var err error
		if t.statuses[pod], err = t.show(pod); err != nil {
			t.unsure[pod] = err
		}
	}
	if t.unsure[pod] != nil {
		return
	}
	b := eventID.Append(nil, []byte(id))
	b = eventType.AppendVarint(b, uint64(what))
	b = eventTime.AppendVarint(b, uint64(time.Now().UnixNano()))
	t.events = append(t.events, codec.NewFrame(append(b, t.statuses[pod]...)))
}

// leaveUntold puts the pods that could not be shown back to what they were.
func (t *teller) leaveUntold() error {
	var errs []error
	for pod, err := range t.unsure {
		errs = append(errs, fmt.Errorf("sandbox %s: %w", pod, err))
		delete(t.now.pods, pod)
		if old, was := t.old.pods[pod]; was {
			t.now.pods[pod] = old
		}
	}
	maps.DeleteFunc(t.now.containers, func(_ string, one container) bool { return t.unsure[one.pod] != nil })
	for id, one := range t.old.containers {
		if t.unsure[one.pod] != nil {
			t.now.containers[id] = one
		}
	}
	return errors.Join(errs...)
}

// show returns the fields of an event that show a pod. It shows a pod that is gone as it was
// last, and ended; of a pod whose status was never seen it shows nothing.
func (t *teller) show(id string) ([]byte, error) {
	var b []byte
	if now, is := t.now.pods[id]; is {
		status, err := t.status(runtimeapi.RuntimeService_PodSandboxStatus_FullMethodName, podAsked, id, podAnswered)
		if err != nil {
			return nil, err
		}
		now.status = append([]byte(nil), status...)
		t.now.pods[id] = now
		b = eventPod.Append(b, status)
	} else if old, was := t.old.pods[id]; was {
		b = eventPod.Append(b, statusState.AppendVarint(append([]byte(nil), old.status...), podNotReady))
	}
	for _, one := range t.now.order.containers {
		if t.now.containers[one].pod != id {
			continue
		}
		status, err := t.status(runtimeapi.RuntimeService_ContainerStatus_FullMethodName, oneAsked, one, oneAnswered)
		if err != nil {
			return nil, err
		}
		b = eventStatuses.Append(b, status)
	}
	// Kubelet could not decode it, and would end the stream.
	return b, proto.Unmarshal(b, &runtimeapi.ContainerEventResponse{})
}

// status asks for a status.
func (t *teller) status(method string, asked *rewrite.Path, id string, answered *rewrite.Path) ([]byte, error) {
	reply, remembered, err := ask(t.ctx, t.conn, method, asked.Append(nil, []byte(id)))
	if err == nil && remembered {
		err = errRemembered
	}
	if err != nil {
		return nil, err
	}
	status, _, err := answered.Lookup(reply)
	return status, err
}
