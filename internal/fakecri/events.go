package fakecri

import (
	"context"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// keepEvents is how long events wait while there is no subscriber. Their number is bounded as well,
// for simulated clocks that stand still.
const (
	keepEvents    = 5 * time.Minute
	maxKeptEvents = 10000
)

// An eventQueue passes events to subscribers. The runtime's mutex guards the queue and the
// subscribers.
type eventQueue struct {
	subscribers map[*subscriber]bool
	waiting     []*runtimeapi.ContainerEventResponse // while there is no subscriber
	changed     chan struct{}                        // closed when subscribers, or what they have to send, change
}

type subscriber struct {
	events []*runtimeapi.ContainerEventResponse
	ended  bool
	err    error // with which the stream ends
}

func newEventQueue() eventQueue {
	return eventQueue{subscribers: map[*subscriber]bool{}, changed: make(chan struct{})}
}

// send sends all subscribers an event about the container id of p, or about p itself. The event holds
// the statuses of p and of all its containers.
func (rt *Runtime) send(id string, p *pod, what runtimeapi.ContainerEventType) {
	if rt.cfg.Events != EventsOn {
		return
	}
	event := &runtimeapi.ContainerEventResponse{
		ContainerId: id, ContainerEventType: what, CreatedAt: rt.now(), PodSandboxStatus: p.status(),
	}
	for _, c := range p.containers {
		event.ContainersStatuses = append(event.ContainersStatuses, rt.containerStatus(c))
	}
	if len(rt.events.subscribers) == 0 {
		rt.events.waiting = append(rt.events.fresh(event.CreatedAt), event)
		return
	}
	for s := range rt.events.subscribers {
		s.events = append(s.events, event)
	}
	rt.events.announce()
}

// fresh returns the waiting events that are not too old.
func (q *eventQueue) fresh(now int64) []*runtimeapi.ContainerEventResponse {
	for i, event := range q.waiting {
		if now-event.CreatedAt < keepEvents.Nanoseconds() && len(q.waiting)-i <= maxKeptEvents {
			return q.waiting[i:]
		}
	}
	return nil
}

// GetContainerEvents sends events until the client or the server ends the stream. The first
// subscriber also gets the events of the last five minutes.
func (s runtimeService) GetContainerEvents(_ *runtimeapi.GetEventsRequest, stream runtimeapi.RuntimeService_GetContainerEventsServer) error {
	if s.cfg.Events == EventsCleanEOF {
		return nil
	}
	sub := s.subscribe()
	defer s.unsubscribe(sub)
	for {
		events, changed, ended, err := s.take(sub)
		for _, event := range events {
			if err := stream.Send(event); err != nil {
				return err
			}
		}
		if ended {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

func (rt *Runtime) subscribe() *subscriber {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	sub := &subscriber{events: rt.events.fresh(rt.now())}
	rt.events.waiting = nil
	rt.events.subscribers[sub] = true
	rt.events.announce()
	return sub
}

func (rt *Runtime) unsubscribe(sub *subscriber) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	delete(rt.events.subscribers, sub)
	rt.events.announce()
}

func (rt *Runtime) take(sub *subscriber) (events []*runtimeapi.ContainerEventResponse, changed <-chan struct{}, ended bool, err error) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	events, sub.events = sub.events, nil
	return events, rt.events.changed, sub.ended, sub.err
}

func (q *eventQueue) announce() {
	close(q.changed)
	q.changed = make(chan struct{})
}

// EndEvents ends the event streams of all current subscribers, with err, or with OK if err is nil.
// Events that wait for a subscriber are sent first.
func (rt *Runtime) EndEvents(err error) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	for s := range rt.events.subscribers {
		s.ended, s.err = true, err
		delete(rt.events.subscribers, s)
	}
	rt.events.announce()
}

// WaitSubscribers waits until exactly n clients are subscribed to events.
func (rt *Runtime) WaitSubscribers(ctx context.Context, n int) error {
	for {
		rt.mu.Lock()
		have, changed := len(rt.events.subscribers), rt.events.changed
		rt.mu.Unlock()
		if have == n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
