package server

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/testing/bounded"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// A follower is a client that has opened a stream of events.
type follower struct {
	testing.TB
	ended chan error

	mu     sync.Mutex
	events []*runtimeapi.ContainerEventResponse
}

// follow opens a stream of events, through the proxy or at a runtime.
func follow(t testing.TB, c runtimeapi.RuntimeServiceClient) *follower {
	t.Helper()
	ctx, cancel := context.WithCancel(bounded.Context(t))
	f := &follower{TB: t, ended: make(chan error, 1)}
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	stream, err := c.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	require.NoError(t, err)
	go func() {
		defer close(done)
		for {
			e, err := stream.Recv()
			if err != nil {
				f.ended <- err
				return
			}
			f.mu.Lock()
			f.events = append(f.events, e)
			f.mu.Unlock()
		}
	}()
	return f
}

// of returns the events of a pod or container.
func (f *follower) of(id string) []runtimeapi.ContainerEventType {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []runtimeapi.ContainerEventType
	for _, e := range f.events {
		if e.GetContainerId() == id {
			all = append(all, e.GetContainerEventType())
		}
	}
	return all
}

// last waits until the latest event of a pod or container is what.
func (f *follower) last(id string, what runtimeapi.ContainerEventType) {
	f.Helper()
	testkit.Eventually(f, fmt.Sprint("the client gets ", what, " of ", id), func() bool {
		all := f.of(id)
		return len(all) > 0 && all[len(all)-1] == what
	})
}

// goesOn asserts that the stream has not ended.
func (f *follower) goesOn() {
	f.Helper()
	select {
	case err := <-f.ended:
		require.Fail(f, "the stream has ended", "%v", err)
	default:
	}
}

const (
	startedEvent = runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT
	stoppedEvent = runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT
	deletedEvent = runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT
)

// direct returns a client of runtime i itself.
func (n *node) direct(i int) runtimeapi.RuntimeServiceClient {
	return runtimeapi.NewRuntimeServiceClient(connectTo(n, "unix:"+n.runtimes[i].Path))
}

func (n *node) subscribed(i, clients int) {
	n.Helper()
	require.NoError(n, n.runtimes[i].WaitSubscribers(n.ctx(), clients))
}

// own returns the native id, at runtime i, of the object with the front id.
func (n *node) own(i int, id string) string {
	if i == 0 || n.cfg.IDs == config.NativeIDs {
		return id
	}
	return id[len(n.cfg.Backends[i].Name+"__"):]
}

func TestNoEndOfOneRuntimesEventsEndsTheOthers(t *testing.T) {
	for broken, name := range []string{"the primary's", "the other's"} {
		for _, end := range []error{nil, status.Error(codes.Unimplemented, "no events"), status.Error(codes.Unavailable, "no events")} {
			t.Run(fmt.Sprint(name, " with ", end), func(t *testing.T) {
				t.Parallel()
				n := newNode(t, nil)
				n.isUp(1)
				events := follow(t, n)
				n.subscribed(broken, 1)
				n.subscribed(1-broken, 1)
				before := n.run(broken, "before", 1)
				events.last(before.containers[0], startedEvent)

				refuse := end
				if end == nil {
					refuse = status.Error(codes.Internal, "not yet")
				}
				n.runtimes[broken].When(testkit.Failing(refuse, "GetContainerEvents"))
				n.runtimes[broken].EndEvents(end)
				other := n.run(1-broken, "other", 1)
				events.last(other.containers[0], startedEvent)
				meanwhile := n.run(broken, "meanwhile", 2)
				events.last(meanwhile.containers[0], startedEvent)
				events.last(meanwhile.containers[1], stoppedEvent)
				_, err := n.direct(broken).RemoveContainer(n.ctx(), &runtimeapi.RemoveContainerRequest{ContainerId: n.own(broken, before.containers[0])})
				require.NoError(t, err)
				events.last(before.containers[0], deletedEvent)

				n.runtimes[broken].When(nil)
				n.subscribed(broken, 1)
				after := n.run(broken, "after", 1)
				events.last(after.containers[0], startedEvent)
				events.goesOn()
			})
		}
	}
}

// kubelet stops using events for good at the fifth end of a stream.
func TestEventsGoOnOverReloads(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, mode func(*config.Config)) {
		n := newNode(t, mode)
		n.isUp(1)
		events := follow(t, n)
		n.subscribed(0, 1)
		n.subscribed(1, 1)
		ours, theirs := n.run(0, "ours", 1), n.run(1, "theirs", 2)
		events.last(theirs.containers[1], stoppedEvent)

		n.onlyThePrimary()
		events.last(theirs.containers[0], deletedEvent)
		events.last(theirs.sandbox, deletedEvent)
		n.subscribed(1, 0)
		alone := n.run(0, "alone", 1)
		events.last(alone.containers[0], startedEvent)

		require.NoError(t, reload(n.proxy, n.cfg))
		events.last(theirs.sandbox, startedEvent)
		events.last(theirs.containers[0], startedEvent)
		events.last(theirs.containers[1], stoppedEvent)
		n.subscribed(1, 1)

		for i := range 6 {
			changed := *n.cfg
			changed.ListBudget += time.Duration(i+1) * time.Second // all connections are new
			n.runtimes[1].When(testkit.Failing(status.Error(codes.Internal, "not yet"), "GetContainerEvents"))
			require.NoError(t, reload(n.proxy, &changed))
			n.isUp(1)
			more := n.run(1, fmt.Sprint("more", i), 1)
			events.last(more.containers[0], startedEvent)
			n.runtimes[1].When(nil)
			n.subscribed(1, 1)
			n.subscribed(0, 1)
		}
		last := n.run(0, "last", 1)
		events.last(last.containers[0], startedEvent)
		for _, id := range []string{ours.sandbox, ours.containers[0], alone.sandbox, alone.containers[0]} {
			assert.NotContains(t, events.of(id), deletedEvent, "its connection was replaced, and it is still there")
		}
		events.goesOn()
	})
}

// The stream of events goes along, although the backend is the same.
func TestEventsGoOnWhenABackendMoves(t *testing.T) {
	t.Parallel()
	n := newNode(t, func(cfg *config.Config) { cfg.Backends = cfg.Backends[:2] }, machineConfig{},
		machineConfig{backend: config.Backend{Name: "beta.io"}}, machineConfig{backend: config.Backend{Name: "gamma.io"}})
	n.isUp(1)
	events := follow(t, n)
	n.subscribed(1, 1)
	before := n.run(1, "before", 1)
	events.last(before.containers[0], startedEvent)
	moved := *n.cfg
	moved.Backends = slices.Clone(moved.Backends)
	moved.Backends[1].Address = n.runtimes[2].Path
	require.NoError(t, reload(n.proxy, &moved))
	n.subscribed(1, 0)
	n.subscribed(2, 1)
	events.last(before.containers[0], deletedEvent)
	events.last(n.run(1, "after", 1).containers[0], startedEvent)
	events.goesOn()
}

func TestEventsGoOnWhenARuntimeJoinsTheOnlyOne(t *testing.T) {
	t.Parallel()
	n := newNode(t, func(cfg *config.Config) {})
	n.isUp(1)
	theirs := n.run(1, "theirs", 1)
	without := *n.cfg
	without.Backends = without.Backends[:1]
	n.stop()
	both := n.cfg
	n.cfg = &without
	n.start()
	events := follow(t, n)
	n.subscribed(0, 1)
	alone := n.run(0, "alone", 1)
	events.last(alone.containers[0], startedEvent)
	n.cfg = both
	require.NoError(t, reload(n.proxy, both))
	events.last(theirs.sandbox, startedEvent)
	events.last(theirs.containers[0], startedEvent)
	n.subscribed(0, 1)
	for i := range n.runtimes {
		n.isUp(i)
		events.last(n.run(i, "after", 1).containers[0], startedEvent)
	}
	n.runtimes[0].EndEvents(status.Error(codes.NotFound, "it is one of two now"))
	n.subscribed(0, 1)
	events.last(n.run(0, "again", 1).containers[0], startedEvent)
	events.goesOn()
}

// Otherwise a stream of events would keep its connection for ten minutes.
func TestARuntimeThatIsTakenAwayIsAskedNothingMore(t *testing.T) {
	t.Parallel()
	wire := &testkit.Wire{}
	n := newNode(t, nil, machineConfig{}, machineConfig{backend: config.Backend{Name: "beta.io"}, wire: wire})
	n.isUp(1)
	events := follow(t, n)
	n.subscribed(1, 1)
	require.Positive(t, wire.Open.Load())
	n.onlyThePrimary()
	testkit.Eventually(t, "no connection to it is open", func() bool { return wire.Open.Load() == 0 })
	events.goesOn()
}

func TestEventsOfTheOnlyRuntimeEndAsItEndsThem(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil, machineConfig{})
	for _, end := range []error{nil, status.Error(codes.NotFound, "no events"), status.Error(codes.Unimplemented, "no events")} {
		events := follow(t, n)
		n.subscribed(0, 1)
		n.runtimes[0].EndEvents(end)
		if end == nil {
			end = io.EOF
		}
		select {
		case err := <-events.ended:
			assert.EqualError(t, err, end.Error())
		case <-time.After(testkit.Patience):
			require.Fail(t, "the stream goes on")
		}
	}
	assert.Empty(t, n.runtimes[0].Calls("ListPodSandbox"), "it gets no other call")
}

// kubelet opens the stream again at once. On the connection of a process that stops, the stream
// would fail five times in a row before gRPC tells the client to connect again: gRPC first waits for
// clients that have connected and sent nothing.
func TestEventsEndOnceWhenTheProcessStops(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	n.isUp(1)
	events := follow(t, n)
	n.subscribed(0, 1)
	silent, err := net.Dial("unix", n.cfg.Listen)
	require.NoError(t, err)
	defer silent.Close()
	testkit.Eventually(t, "gRPC waits for it", func() bool { return greeting(n.proxy, n.proxy.sockets()[0]) == 1 })
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		n.stop()
	}()
	err = <-events.ended
	testkit.AssertCode(t, codes.Unavailable, err)
	assert.ErrorContains(t, err, "this process stops; open the stream again")
	for range 20 {
		stream, err := n.GetContainerEvents(n.ctx(), &runtimeapi.GetEventsRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		assert.NotContains(t, err.Error(), "this process stops", "the call was made on the connection that ends")
	}
	<-stopped
}
