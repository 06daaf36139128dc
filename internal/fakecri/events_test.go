package fakecri_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/fakecri"
	"github.com/criproxy/criproxy/internal/testing/bounded"
)

// subscribe returns a function that returns the next events as
// "STOPPED container, of web READY [main RUNNING]". subscribe returns when the runtime has the
// subscription.
func subscribe(c *client, subscribers int) (next func(n int) []string) {
	c.t.Helper()
	ctx := bounded.Context(c.t)
	stream, err := c.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	require.NoError(c.t, err)
	require.NoError(c.t, c.rt.WaitSubscribers(ctx, subscribers))
	return func(n int) (events []string) {
		for range n {
			event, err := stream.Recv()
			require.NoError(c.t, err)
			events = append(events, describe(event))
		}
		return events
	}
}

func describe(e *runtimeapi.ContainerEventResponse) string {
	of, containers := "pod", []string{}
	if e.GetContainerId() != e.GetPodSandboxStatus().GetId() {
		of = "container"
	}
	for _, s := range e.GetContainersStatuses() {
		containers = append(containers, s.GetMetadata().GetName()+" "+strings.TrimPrefix(s.GetState().String(), "CONTAINER_"))
	}
	kind := strings.TrimSuffix(strings.TrimPrefix(e.GetContainerEventType().String(), "CONTAINER_"), "_EVENT")
	return fmt.Sprintf("%s %s, of %s %s %v", kind, of, e.GetPodSandboxStatus().GetMetadata().GetName(),
		strings.TrimPrefix(e.GetPodSandboxStatus().GetState().String(), "SANDBOX_"), containers)
}

func TestAllSubscribersGetTheEventsOfAPod(t *testing.T) {
	c := start(t, fakecri.Config{})
	first, second := subscribe(c, 1), subscribe(c, 2)
	pod, id := c.running("web")
	require.NoError(t, c.rt.Exit(id, 0))
	_, err := c.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id})
	require.NoError(t, err)
	c.begin(c.create(pod, "web", "second"))
	_, err = c.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod})
	require.NoError(t, err)

	want := []string{
		"CREATED pod, of web READY []",
		"STARTED pod, of web READY []",
		"CREATED container, of web READY [main CREATED]",
		"STARTED container, of web READY [main RUNNING]",
		"STOPPED container, of web READY [main EXITED]",
		"DELETED container, of web READY []",
		"CREATED container, of web READY [second CREATED]",
		"STARTED container, of web READY [second RUNNING]",
		"STOPPED container, of web READY [second EXITED]",
		"STOPPED pod, of web NOTREADY [second EXITED]",
		"DELETED container, of web NOTREADY []",
		"DELETED pod, of web NOTREADY []",
	}
	assert.Equal(t, want, first(len(want)))
	assert.Equal(t, want, second(len(want)))
}
