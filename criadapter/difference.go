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

// difference is the difference between two snapshots, as events.
type difference struct {
	ctx      context.Context
	conn     grpc.ClientConnInterface
	old, now *snapshot
	statuses map[string][]byte // :: sandbox → the statuses that all events about it have
	unsure   map[string]error  // :: sandbox → why its present status is not known
	events   []*codec.Frame
}

func newDifference(ctx context.Context, conn grpc.ClientConnInterface, old, now *snapshot) *difference {
	return &difference{ctx: ctx, conn: conn, old: old, now: now, statuses: map[string][]byte{}, unsure: map[string]error{}}
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

// find makes the events in the order in which a runtime acts: pods come before their containers,
// and go after them. If it cannot get the present status of a pod, it leaves the events of the pod
// to the next difference, and the pod in the snapshot as it was: kubelet believes that a pod has
// exactly the containers that an event shows.
func (d *difference) find() error {
	var ended []string
	for _, id := range d.now.order.pods {
		now := d.now.pods[id]
		old, was := d.old.pods[id]
		if !was {
			d.event(id, created, id)
			d.event(id, started, id)
			old.state = podReady
		}
		if now.state != old.state && now.state == podNotReady {
			ended = append(ended, id)
		}
	}
	for _, id := range d.now.order.containers {
		now := d.now.containers[id]
		old, was := d.old.containers[id]
		if !was {
			d.event(id, created, now.pod)
		}
		if old.state == now.state && was {
			continue
		}
		if now.state == running || now.state == exited && old.state != running {
			d.event(id, started, now.pod)
		}
		if now.state == exited {
			d.event(id, stopped, now.pod)
		}
	}
	for _, id := range ended {
		d.event(id, stopped, id)
	}
	for id, one := range d.old.containers {
		if _, is := d.now.containers[id]; !is {
			d.event(id, deleted, one.pod)
		}
	}
	for id := range d.old.pods {
		if _, is := d.now.pods[id]; !is {
			d.event(id, deleted, id)
		}
	}
	return d.leaveUnshown()
}

// event appends one event. The event shows the pod as it is now, because kubelet takes that from
// it.
func (d *difference) event(id string, what runtimeapi.ContainerEventType, pod string) {
	if _, done := d.statuses[pod]; !done && d.unsure[pod] == nil {
		var err error
		if d.statuses[pod], err = d.show(pod); err != nil {
			d.unsure[pod] = err
		}
	}
	if d.unsure[pod] != nil {
		return
	}
	b := eventID.Append(nil, []byte(id))
	b = eventType.AppendVarint(b, uint64(what))
	b = eventTime.AppendVarint(b, uint64(time.Now().UnixNano()))
	d.events = append(d.events, codec.NewFrame(append(b, d.statuses[pod]...)))
}

// leaveUnshown puts the pods whose present status is not known back to what they were.
func (d *difference) leaveUnshown() error {
	var errs []error
	for pod, err := range d.unsure {
		errs = append(errs, fmt.Errorf("sandbox %s: %w", pod, err))
		delete(d.now.pods, pod)
		if old, was := d.old.pods[pod]; was {
			d.now.pods[pod] = old
		}
	}
	maps.DeleteFunc(d.now.containers, func(_ string, one container) bool { return d.unsure[one.pod] != nil })
	for id, one := range d.old.containers {
		if d.unsure[one.pod] != nil {
			d.now.containers[id] = one
		}
	}
	return errors.Join(errs...)
}

// show returns the fields of an event that show a pod. For a pod that is gone they show its last
// status, as not ready. They are empty for a pod whose status was never known.
func (d *difference) show(id string) ([]byte, error) {
	var b []byte
	if now, is := d.now.pods[id]; is {
		status, err := d.status(runtimeapi.RuntimeService_PodSandboxStatus_FullMethodName, podAsked, id, podAnswered)
		if err != nil {
			return nil, err
		}
		now.status = append([]byte(nil), status...)
		d.now.pods[id] = now
		b = eventPod.Append(b, status)
	} else if old, was := d.old.pods[id]; was {
		b = eventPod.Append(b, statusState.AppendVarint(append([]byte(nil), old.status...), podNotReady))
	}
	for _, one := range d.now.order.containers {
		if d.now.containers[one].pod != id {
			continue
		}
		status, err := d.status(runtimeapi.RuntimeService_ContainerStatus_FullMethodName, oneAsked, one, oneAnswered)
		if err != nil {
			return nil, err
		}
		b = eventStatuses.Append(b, status)
	}
	// kubelet ends the stream if it cannot decode an event.
	return b, proto.Unmarshal(b, &runtimeapi.ContainerEventResponse{})
}

// status asks the runtime for the status of a pod or container.
func (d *difference) status(method string, asked *rewrite.Path, id string, answered *rewrite.Path) ([]byte, error) {
	reply, remembered, err := ask(d.ctx, d.conn, method, asked.Append(nil, []byte(id)))
	if err == nil && remembered {
		err = errRemembered
	}
	if err != nil {
		return nil, err
	}
	status, _, err := answered.Lookup(reply)
	return status, err
}
