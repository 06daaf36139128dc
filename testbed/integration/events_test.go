package integration

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A subscription is a stream of events under way.
type subscription struct {
	cancel context.CancelFunc
	ended  chan error

	mu     sync.Mutex
	events []*runtimeapi.ContainerEventResponse
}

// subscribe opens a stream of events.
func subscribe(t *testing.T, c client) *subscription {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	t.Cleanup(cancel)
	stream, err := c.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	require.NoError(t, err)
	s := &subscription{cancel: cancel, ended: make(chan error, 1)}
	go func() {
		for {
			e, err := stream.Recv()
			if err != nil {
				s.ended <- err
				return
			}
			s.mu.Lock()
			s.events = append(s.events, e)
			s.mu.Unlock()
		}
	}()
	return s
}

// of returns the events of a pod or container.
func (s *subscription) of(id string) []*runtimeapi.ContainerEventResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.events), func(e *runtimeapi.ContainerEventResponse) bool { return e.ContainerId != id })
}

// warmUp causes events on a runtime until one arrives: 1.7 sends each event to only one of its subscribers, and a
// subscriber that has gone still gets one (https://github.com/containerd/containerd/issues/7318).
func (s *subscription) warmUp(t *testing.T, c client, on *side) {
	t.Helper()
	eventually(t, func() error {
		p := run(t, c, on, "warm-up")
		p.remove(t)
		if len(s.of(p.id)) == 0 {
			return fmt.Errorf("no events of %s", on.Name)
		}
		return nil
	})
}

// The first of the predecessors had no streams at all, the second answered this one with Unimplemented.
func TestEventsOfBothRuntimesComeAsOneStream(t *testing.T) {
	b := start(t)
	for _, version := range []string{v1, v1alpha2} {
		t.Run(version, func(t *testing.T) {
			c := dial(t, b.proxy.Socket(), version)
			events := subscribe(t, c)
			pods := map[string]string{} // :: front id → that of its pod
			for _, s := range b.sides() {
				events.warmUp(t, c, s)
				p := run(t, c, s, "events")
				id := p.start(t)
				_, err := c.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 20})
				require.NoError(t, err)
				_, err = c.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id})
				require.NoError(t, err)
				p.remove(t)
				pods[id], pods[p.id] = p.id, p.id
			}
			for id, pod := range pods {
				var happened []runtimeapi.ContainerEventType
				eventually(t, func() error {
					happened = nil
					for _, e := range events.of(id) {
						happened = append(happened, e.ContainerEventType)
					}
					// A second after a stream opens, criproxy checks for missed events. A change that has just
					// happened is then reported twice, if the check is faster than the event.
					happened = slices.Compact(happened)
					if len(happened) < 4 {
						return fmt.Errorf("%s: so far %v", id, happened)
					}
					return nil
				})
				assert.Equal(t, []runtimeapi.ContainerEventType{
					runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT,
					runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT,
					runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT,
					runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT,
				}, happened, id)
				for _, e := range events.of(id) {
					if e.PodSandboxStatus != nil { // the last events of a pod have no status
						assert.Equal(t, pod, e.PodSandboxStatus.Id)
					}
					for _, status := range e.ContainersStatuses {
						assert.Contains(t, pods, status.Id)
					}
				}
			}
			events.cancel()
			err := <-events.ended
			assert.Equal(t, codes.Canceled, status.Code(err), err)
		})
	}
}
