package criadapter

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/rewrite"
)

// A difference is the difference between two snapshots, as events. It asks for each status once, so that all events about a
// pod show the same. find also corrects the new snapshot, where events could not be made: what it then holds is what the
// client will know. It belongs to the goroutine that makes it.
type difference struct {
	ctx      context.Context
	conn     grpc.ClientConnInterface // nil: the runtime is not asked
	old, now *snapshot
	statuses map[string][]byte // :: sandbox → the statuses that all events about it have
	unsure   map[string]error  // :: sandbox → why its present status is not known
	events   []*codec.Frame
}

// errUnshown says that neither the runtime nor its last events and lists have the status of a pod.
// It does not fail the Look: asking again at once would not help.
var errUnshown = errors.New("it has no status")

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
	statusNames   = mustPath(&runtimeapi.PodSandboxStatus{}, "metadata")
	statusState   = mustPath(&runtimeapi.PodSandboxStatus{}, "state")
)

// find makes the events in the order in which a runtime acts: pods come before their containers,
// and go after them. If it cannot get the present status of a pod, it leaves the events of the pod
// to the next difference, and the pod in the snapshot as it was: kubelet believes that a pod has
// exactly the containers that an event shows. An event about a pod that has no status at all is not
// made: kubelet 1.26.0 panics at it, and later ones ignore it.
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
// it, and is as old as the lists that it follows from: kubelet prefers the newer of two events, and
// the runtime's own may have come in between.
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
	b = eventTime.AppendVarint(b, uint64(d.now.asked.UnixNano()))
	d.events = append(d.events, codec.NewFrame(append(b, d.statuses[pod]...)))
}

// leaveUnshown puts the pods whose present status is not known back to what they were, with their containers, so that the
// next difference finds their events. It forgets what is gone and has no status anywhere: no event about it can ever be made.
// Its error names the pods whose status the runtime did not give.
func (d *difference) leaveUnshown() error {
	var errs []error
	again := func(pod string, listed bool) bool { return listed || !errors.Is(d.unsure[pod], errUnshown) }
	for pod, err := range d.unsure {
		if !errors.Is(err, errUnshown) {
			errs = append(errs, fmt.Errorf("sandbox %s: %w", pod, err))
		}
		_, listed := d.now.pods[pod]
		delete(d.now.pods, pod)
		if old, was := d.old.pods[pod]; was && again(pod, listed) {
			d.now.pods[pod] = old
		}
	}
	back := map[string]container{}
	for id, one := range d.old.containers {
		_, listed := d.now.containers[id]
		if d.unsure[one.pod] != nil && again(one.pod, listed) {
			back[id] = one
		}
	}
	maps.DeleteFunc(d.now.containers, func(_ string, one container) bool { return d.unsure[one.pod] != nil })
	maps.Copy(d.now.containers, back)
	return errors.Join(errs...)
}

// show returns the fields of an event that show a pod. For a pod that is gone they show its last
// status, as not ready.
func (d *difference) show(id string) ([]byte, error) {
	now, listed := d.now.pods[id]
	last := d.old.pods[id].status
	var b []byte
	switch {
	case !listed && names(last):
		b = eventPod.Append(b, statusState.AppendVarint(append([]byte(nil), last...), podNotReady))
	case d.conn == nil || id == "":
		return nil, errUnshown
	default: // also a pod that is not listed: a runtime may list a container before its pod, or after it
		status, err := d.status(runtimeapi.RuntimeService_PodSandboxStatus_FullMethodName, podAsked, id, podAnswered)
		if err == nil && len(status) > 0 && !names(status) { // the list may say which pod it is
			metadata, _, _ := statusNames.Lookup(now.status)
			status = statusNames.Append(append([]byte(nil), status...), metadata)
		}
		if !listed && grpcstatus.Code(err) == codes.NotFound || err == nil && !names(status) {
			err = errUnshown
		}
		if err != nil {
			return nil, err
		}
		if listed {
			now.status = append([]byte(nil), status...)
			d.now.pods[id] = now
		}
		b = eventPod.Append(b, status)
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

// names reports whether a PodSandboxStatus says which pod it is about. kubelet takes that from its metadata.
func names(status []byte) bool {
	metadata, _, err := statusNames.Lookup(status)
	return len(metadata) > 0 && err == nil
}

// status asks the runtime for the status of a pod or container.
func (d *difference) status(method string, asked *rewrite.Path, id string, answered *rewrite.Path) ([]byte, error) {
	reply, cached, err := ask(d.ctx, d.conn, method, asked.Append(nil, []byte(id)))
	if err == nil && cached {
		err = errStale
	}
	if err != nil {
		return nil, err
	}
	status, _, err := answered.Lookup(reply)
	return status, err
}
