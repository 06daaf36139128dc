package criadapter_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/fakecri"
	"github.com/criproxy/criproxy/internal/testing/bounded"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// A witness is a resync with the runtime that it looks at.
type witness struct {
	*testkit.Machine
	runtimeapi.RuntimeServiceClient
	director.Resync
	images runtimeapi.ImageServiceClient
	conn   grpc.ClientConnInterface
	old    bool // answers come from the cache

	reply func(method string, reply *codec.Frame) *codec.Frame // changes a reply of the runtime; nil: none
	asked func(method string)                                  // called before the runtime is asked; or nil
}

func newWitness(t *testing.T) *witness {
	w := &witness{Machine: testkit.NewMachine(t, "", filepath.Join(muxtest.Dir(t), "0.sock"), fakecri.Config{})}
	w.Start()
	cc := testkit.Dialed(t, w.Path)
	w.conn, w.RuntimeServiceClient, w.images = cc, runtimeapi.NewRuntimeServiceClient(cc), runtimeapi.NewImageServiceClient(cc)
	cfg, err := criadapter.Config(criadapter.Options{})
	require.NoError(t, err)
	w.Resync = cfg.Resyncs["container-events"]()
	return w
}

// Invoke answers calls of the resync, as the runtime or as its cache would.
func (w *witness) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if w.asked != nil {
		w.asked(method)
	}
	err := w.conn.Invoke(ctx, method, args, reply, opts...)
	if frame, ok := reply.(*codec.Frame); ok && err == nil && w.reply != nil {
		*frame = *w.reply(method, frame)
	}
	for _, o := range opts {
		if h, ok := o.(grpc.HeaderCallOption); ok && w.old {
			*h.HeaderAddr = metadata.Pairs(backend.HeaderKey, "it")
		}
	}
	return err
}

func (w *witness) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return w.conn.NewStream(ctx, desc, method, opts...)
}

// run runs a pod with containers, of which the last has exited.
func (w *witness) run(name string, containers ...string) string {
	w.Helper()
	config := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "n", Uid: "uid-" + name}}
	ran, err := w.RunPodSandbox(w.Context(), &runtimeapi.RunPodSandboxRequest{Config: config})
	require.NoError(w, err)
	for i, c := range containers {
		made, err := w.CreateContainer(w.Context(), &runtimeapi.CreateContainerRequest{
			PodSandboxId: ran.GetPodSandboxId(), SandboxConfig: config,
			Config: &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: c}, Image: &runtimeapi.ImageSpec{Image: "busybox"}},
		})
		require.NoError(w, err)
		_, err = w.StartContainer(w.Context(), &runtimeapi.StartContainerRequest{ContainerId: made.GetContainerId()})
		require.NoError(w, err)
		if i > 0 && i == len(containers)-1 {
			_, err = w.StopContainer(w.Context(), &runtimeapi.StopContainerRequest{ContainerId: made.GetContainerId()})
			require.NoError(w, err)
		}
	}
	return ran.GetPodSandboxId()
}

func (w *witness) pull() {
	w.Helper()
	_, err := w.images.PullImage(w.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: "busybox"}})
	require.NoError(w, err)
}

func (w *witness) remove(pod string) {
	w.Helper()
	_, err := w.StopPodSandbox(w.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod})
	require.NoError(w, err)
	_, err = w.RemovePodSandbox(w.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod})
	require.NoError(w, err)
}

// look returns the events that the resync makes now.
func (w *witness) look() string {
	w.Helper()
	events, err := w.Look(w.Context(), w)
	require.NoError(w, err)
	return w.says(events)
}

// says returns events as text, with the number of containers that each shows.
func (w *witness) says(frames []*codec.Frame) string {
	w.Helper()
	var lines []string
	for _, f := range frames {
		var e runtimeapi.ContainerEventResponse
		require.NoError(w, proto.Unmarshal(f.Bytes(), &e))
		require.NotNil(w, e.GetPodSandboxStatus().GetMetadata(), "kubelet ignores it without")
		assert.InDelta(w, time.Now().UnixNano(), e.GetCreatedAt(), float64(time.Minute))
		what := strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(e.GetContainerEventType().String(), "CONTAINER_"), "_EVENT"))
		id := e.GetContainerId()
		if id == e.GetPodSandboxStatus().GetId() {
			id = "pod"
		}
		for _, c := range w.Containers() {
			if c.GetId() == id {
				id = c.GetMetadata().GetName()
			}
		}
		lines = append(lines, fmt.Sprintf("%s %s %s %d", e.GetPodSandboxStatus().GetMetadata().GetName(), id, what, len(e.GetContainersStatuses())))
	}
	return strings.Join(lines, "\n")
}

func TestWhatAStreamMissedMakesEvents(t *testing.T) {
	w := newWitness(t)
	w.pull()
	w.run("before", "a")
	require.NoError(t, w.Begin(t.Context(), w))
	assert.Empty(t, w.look(), "what is there from the beginning is no news")
	pod := w.run("new", "b", "c")
	assert.Equal(t, `new pod created 2
new pod started 2
new b created 2
new b started 2
new c created 2
new c started 2
new c stopped 2`, w.look())
	assert.Empty(t, w.look(), "the client has got these events")
	_, err := w.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod})
	require.NoError(t, err)
	assert.Equal(t, `new b stopped 2
new pod stopped 2`, w.look())
	w.remove(pod)
	events, err := w.Look(t.Context(), w)
	require.NoError(t, err)
	require.Len(t, events, 3)
	assert.Equal(t, "new pod deleted 0", w.says(events[2:]))
	assert.Len(t, strings.Split(w.says(w.End()), "\n"), 2, "the end of the container that was there from the beginning, and of its pod")
	assert.Empty(t, w.End())
}

func TestAnEventOfTheRuntimeIsNotRepeated(t *testing.T) {
	w := newWitness(t)
	w.pull()
	require.NoError(t, w.Begin(t.Context(), w))
	stream, err := w.GetContainerEvents(bounded.Context(t), &runtimeapi.GetEventsRequest{})
	require.NoError(t, err)
	saw := func(until func(*runtimeapi.ContainerEventResponse) bool) {
		for {
			e, err := stream.Recv()
			require.NoError(t, err)
			f, err := codec.FrameOf(e)
			require.NoError(t, err)
			require.NoError(t, w.Saw(f))
			if until(e) {
				return
			}
		}
	}
	pod := w.run("new", "b", "c")
	saw(func(e *runtimeapi.ContainerEventResponse) bool {
		return e.GetContainerEventType() == runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT
	})
	assert.Empty(t, w.look())
	w.remove(pod)
	saw(func(e *runtimeapi.ContainerEventResponse) bool {
		return e.GetContainerEventType() == runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT && e.GetContainerId() == pod
	})
	assert.Empty(t, w.look())
}

func TestAnAnswerFromTheCacheMakesNoEvents(t *testing.T) {
	w := newWitness(t)
	pod := w.run("before")
	w.old = true
	require.NoError(t, w.Begin(t.Context(), w), "lists say so, and the client knows them")
	w.remove(pod) // as if the lists were older than the events
	_, err := w.Look(t.Context(), w)
	assert.ErrorContains(t, err, "may be stale")
	w.old = false
	assert.Equal(t, "before pod deleted 0", w.look())
}

// listening is a context that reports when a goroutine waits for its end.
type listening struct {
	context.Context
	waits func()
}

func (c listening) Done() <-chan struct{} { c.waits(); return c.Context.Done() }

// The list under way is too old for a client that asks during it. All such clients get the next list.
func TestManyClientsLookAtARuntimeTogether(t *testing.T) {
	w := newWitness(t)
	cfg, err := criadapter.Config(criadapter.Options{})
	require.NoError(t, err)
	newResync := cfg.Resyncs["container-events"]
	come, ice := make(chan struct{}, 1000), make(chan struct{})
	w.FaultAfter(func(_ context.Context, method string, _ any) error {
		if strings.HasSuffix(method, "/ListPodSandbox") {
			come <- struct{}{}
			<-ice
		}
		return nil
	})
	var clients, waiting sync.WaitGroup
	look := func(want int) {
		waiting.Add(1)
		clients.Go(func() {
			events, err := newResync().Look(listening{t.Context(), sync.OnceFunc(waiting.Done)}, w)
			assert.NoError(t, err)
			assert.Len(t, events, want)
		})
	}
	look(0)
	<-come
	w.run("late")
	for range 100 {
		look(2)
	}
	hurried, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = newResync().Look(hurried, w)
	assert.ErrorIs(t, err, context.Canceled)
	waiting.Wait() // clients that ask later need more lists
	close(ice)
	clients.Wait()
	assert.Less(t, len(w.Calls("ListPodSandbox")), 20)
}

// kubelet believes that a pod has exactly the containers that an event shows.
func TestAPodThatCannotBeShownMakesEventsLater(t *testing.T) {
	w := newWitness(t)
	w.pull()
	require.NoError(t, w.Begin(t.Context(), w))
	for _, method := range []string{"ContainerStatus", "PodSandboxStatus"} {
		w.run("one"+method, "a", "b")
		w.run("two" + method)
		failed := false
		w.Fault(func(_ context.Context, called string, _ any) error {
			if strings.HasSuffix(called, "/"+method) && !failed {
				failed = true
				return status.Error(codes.Unknown, "a disk")
			}
			return nil
		})
		events, err := w.Look(t.Context(), w)
		assert.ErrorContains(t, err, "a disk")
		both := map[bool]string{true: w.says(events), false: w.look()}
		w.Fault(nil)
		assert.Contains(t, both[true]+both[false], fmt.Sprintf("one%s pod created 2\none%s pod started 2\n", method, method))
		assert.Contains(t, both[true]+both[false], fmt.Sprintf("two%s pod created 0\ntwo%s pod started 0", method, method))
		assert.NotContains(t, both[true]+both[false], fmt.Sprintf("one%s pod created 0", method))
		assert.Empty(t, w.look())
	}
}

func TestAnEventThatKubeletCannotDecodeIsNotPassedOn(t *testing.T) {
	w := newWitness(t)
	for what, event := range map[string]string{
		"cut off":    "\x0a\x09x",
		"no text":    "\x0a\x02\xff\xfe",
		"cut inside": "\x22\x03\x0a\x09x",
		"as in Kubernetes 1.25, where the pod's metadata stood": "\x22\x0a\x0a\x01p\x12\x05\x37u-u1",
	} {
		assert.Error(t, w.Saw(codec.NewFrame([]byte(event))), what)
	}
}

// A runtime lists containers after or before pods, and so may show a container without its pod: kubelet 1.26.0 panics at an
// event without the status of a pod, and later ones ignore it.
func TestAnEventShowsThePodOfAContainerThatIsListedWithoutIt(t *testing.T) {
	w := newWitness(t)
	w.pull()
	require.NoError(t, w.Begin(t.Context(), w))
	noPods := func(method string, f *codec.Frame) *codec.Frame {
		if strings.HasSuffix(method, "/ListPodSandbox") {
			return &codec.Frame{}
		}
		return f
	}
	unknown := func(_ context.Context, method string, _ any) error {
		if strings.HasSuffix(method, "/PodSandboxStatus") {
			return status.Error(codes.NotFound, "no such sandbox")
		}
		return nil
	}
	w.run("late", "a")
	w.reply = noPods
	assert.Equal(t, "late a created 1\nlate a started 1", w.look(), "its pod can be asked about")
	w.reply = nil
	assert.Equal(t, "late pod created 1\nlate pod started 1", w.look())

	pod := w.run("unknown", "b")
	w.reply = noPods
	w.Fault(unknown)
	gone := w.look()
	assert.NotContains(t, gone, "unknown", "nobody knows its pod")
	assert.Equal(t, "late pod deleted 1", gone)
	w.reply = nil
	w.Fault(nil)
	assert.Equal(t, `late pod created 1
late pod started 1
unknown pod created 1
unknown pod started 1
unknown b created 1
unknown b started 1`, w.look(), "what was left out follows")

	w.reply = func(method string, f *codec.Frame) *codec.Frame {
		if strings.HasSuffix(method, "/PodSandboxStatus") {
			return &codec.Frame{}
		}
		return f
	}
	_, err := w.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod})
	require.NoError(t, err)
	assert.Empty(t, w.look(), "an empty status names no pod")
	w.reply = func(method string, f *codec.Frame) *codec.Frame {
		if strings.HasSuffix(method, "/PodSandboxStatus") {
			var r runtimeapi.PodSandboxStatusResponse
			require.NoError(t, proto.Unmarshal(f.Bytes(), &r))
			r.Status.Metadata = nil
			b, err := proto.Marshal(&r)
			require.NoError(t, err)
			return codec.NewFrame(b)
		}
		return f
	}
	assert.Equal(t, "unknown b stopped 1\nunknown pod stopped 1", w.look(), "the list names it")
}

// A container is known from an event without the status of its pod, and is gone with the runtime.
func TestAContainerOfAnUnknownPodEndsWithoutAnEvent(t *testing.T) {
	w := newWitness(t)
	for _, e := range []*runtimeapi.ContainerEventResponse{{ContainerId: "c1"}, {ContainerId: "c2", ContainerEventType: runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT}} {
		f, err := codec.FrameOf(e)
		require.NoError(t, err)
		require.NoError(t, w.Saw(f))
	}
	assert.Empty(t, w.look())
	require.NoError(t, w.Saw(codec.NewFrame([]byte("\x0a\x02c3"))))
	assert.Empty(t, w.says(w.End()))
}

// kubelet prefers the newer of two events, and the runtime may have sent one while it was asked about the pod.
func TestAnEventIsAsOldAsWhatItShows(t *testing.T) {
	w := newWitness(t)
	w.pull()
	require.NoError(t, w.Begin(t.Context(), w))
	pod := w.run("one", "a")
	var first int64
	w.asked = func(string) {
		if now := time.Now().UnixNano(); first == 0 {
			first = now
		}
	}
	check := func(events []*codec.Frame, err error) {
		require.NoError(t, err)
		require.NotEmpty(t, events)
		for _, f := range events {
			var e runtimeapi.ContainerEventResponse
			require.NoError(t, proto.Unmarshal(f.Bytes(), &e))
			assert.LessOrEqual(t, e.GetCreatedAt(), first)
		}
		first = 0
	}
	check(w.Look(t.Context(), w))
	w.remove(pod)
	check(w.Look(t.Context(), w))
}
