package daemon

import (
	"bytes"
	"context"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/fakecri"
	"github.com/criproxy/criproxy/internal/lastknown"
	"github.com/criproxy/criproxy/internal/limits"
	"github.com/criproxy/criproxy/internal/testkit"
)

// largeItems has few items make a long list: criproxy asks for the status of each.
var largeItems = fakecri.Config{ItemBytes: 9000}

// taken returns what messages take of the memory of n, and total what they may take.
func taken(n *node) int64 { taken, _, _ := n.proxy.memory.Usage(); return taken }
func total(n *node) int64 { _, total, _ := n.proxy.memory.Usage(); return total }

// under holds calls under way at runtime i: the function begins one, and returns when it
// has come there.
func (n *node) under(i int) (begin func(ctx context.Context, p *pod) <-chan error, thaw func()) {
	var come atomic.Int64
	ice := make(chan struct{})
	n.runtimes[i].When(testkit.On(func(ctx context.Context, _ string, _ any) error {
		come.Add(1)
		select {
		case <-ice:
		case <-ctx.Done():
		}
		return nil
	}, "ExecSync"))
	begin = func(ctx context.Context, p *pod) <-chan error {
		before := come.Load()
		done := make(chan error, 1)
		go func() {
			_, err := n.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: p.containers[0], Cmd: []string{"true"}})
			done <- err
		}()
		testkit.Eventually(n, "a call is there", func() bool { return come.Load() > before })
		return done
	}
	return begin, func() { close(ice) }
}

func TestCallsOverTheLimitOfASocketAreRefusedClearly(t *testing.T) {
	t.Parallel()
	n := newNode(t, func(c *config.Config) { c.Listeners = []config.Listener{{Path: c.Listen, MaxCalls: 2}} })
	p := n.run(0, "web", 1)
	begin, thaw := n.under(0)
	one, two := begin(n.ctx(), p), begin(n.ctx(), p)
	_, err := n.Version(n.ctx(), &runtimeapi.VersionRequest{})
	testkit.AssertCode(t, codes.ResourceExhausted, err)
	assert.ErrorContains(t, err, n.cfg.Listen+" has 2 calls under way, which is its limit")
	thaw()
	require.NoError(t, <-one)
	require.NoError(t, <-two)
	_, err = n.Version(n.ctx(), &runtimeapi.VersionRequest{})
	assert.NoError(t, err, "there is room again")
	testkit.Eventually(t, "nothing is left over", func() bool { return n.proxy.sockets[0].Limits.Calls.Load() == 0 })
}

func TestCallsOverTheLimitOfABackendAreRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil, machineConfig{}, machineConfig{backend: config.Backend{Name: "beta.io", MaxCalls: 2}})
	n.isUp(1)
	here, there := n.run(0, "web", 1), n.run(1, "db", 1)
	begin, thaw := n.under(1)
	one, two := begin(n.ctx(), there), begin(n.ctx(), there)
	_, err := n.UpdateContainerResources(n.ctx(), &runtimeapi.UpdateContainerResourcesRequest{ContainerId: there.containers[0]})
	testkit.AssertCode(t, codes.ResourceExhausted, err)
	assert.ErrorContains(t, err, "backend beta.io has 2 calls under way, which is its limit")
	_, err = n.ContainerStatus(n.ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: here.containers[0]})
	assert.NoError(t, err)
	assert.NotEqual(t, lastknown.Gone, n.proxy.backends()[1].known.State().Condition, "being busy is not being down")
	thaw()
	require.NoError(t, <-one)
	require.NoError(t, <-two)
	_, err = n.ContainerStatus(n.ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: there.containers[0]})
	assert.NoError(t, err)
}

func TestMemoryIsGivenBackWhateverBecomesOfACall(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil, machineConfig{}, machineConfig{backend: config.Backend{Name: "beta.io"}, Config: largeItems})
	n.isUp(1)
	n.runtimes[1].Fill(200) // about 2 MB a list
	large := strings.Repeat("x", 3<<20)
	// gRPC forgets to free what it was to send on a stream that has ended: then it is
	// the garbage collector that gives it back.
	allGivenBack := func() {
		t.Helper()
		testkit.Eventually(t, "all is given back", func() bool { runtime.GC(); return taken(n) == 0 })
	}
	for range 3 {
		_, err := n.ListContainers(n.ctx(), &runtimeapi.ListContainersRequest{})
		require.NoError(t, err)
		_, err = n.Version(n.ctx(), &runtimeapi.VersionRequest{Version: large})
		require.NoError(t, err)
		_, err = n.Version(n.ctx(), &runtimeapi.VersionRequest{Version: large}, grpc.UseCompressor(gzip.Name))
		require.NoError(t, err, "compressed")
		_, err = n.StartContainer(n.ctx(), &runtimeapi.StartContainerRequest{ContainerId: large})
		require.Error(t, err)
		gone, leave := context.WithTimeout(n.Context(), 3*time.Millisecond)
		_, _ = n.ListContainers(gone, &runtimeapi.ListContainersRequest{}) // perhaps in the middle of it
		leave()
		_, err = listContainers(nil).streamed(n)
		require.NoError(t, err)
	}
	allGivenBack()
	_, err := n.Version(n.ctx(), &runtimeapi.VersionRequest{Version: strings.Repeat("x", 17<<20)})
	testkit.AssertCode(t, codes.ResourceExhausted, err)
	assert.ErrorContains(t, err, "more than the limit of 16777216")
	_, err = n.Version(n.ctx(), &runtimeapi.VersionRequest{Version: strings.Repeat("x", 17<<20)}, grpc.UseCompressor(gzip.Name))
	testkit.AssertCode(t, codes.ResourceExhausted, err)
	assert.ErrorContains(t, err, "when it is decompressed")
	allGivenBack()
}

// The reader of messages is gRPC's, whose type has no name: should it be another one in a
// new version, requests would be counted too late.
func TestARequestTakesMemoryBeforeItComes(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	n.proxy.memory.Reserve(total(n)) // all is taken
	ctx, cancel := context.WithTimeout(t.Context(), 4*limits.MemoryWait)
	defer cancel()
	cc := n.cc
	cs, err := cc.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, "/runtime.v1.RuntimeService/Version", grpc.ForceCodecV2(codec.Raw))
	require.NoError(t, err)
	require.NoError(t, cs.SendMsg(codec.NewFrame(bytes.Repeat([]byte{0x0a, 0x01, 'x'}, 4<<20))))
	err = cs.RecvMsg(&codec.Frame{})
	testkit.AssertCode(t, codes.ResourceExhausted, err)
	assert.ErrorContains(t, err, "no memory for a message of 12582912 bytes")
	_, err = n.Version(n.ctx(), &runtimeapi.VersionRequest{})
	assert.NoError(t, err, "small messages need none")
	n.proxy.memory.Release(total(n))
}

// What a runtime streams is kept until its end has come: it may be more than there is
// memory for.
func TestAListThatARuntimeStreamsTakesMemoryAsItComes(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil, machineConfig{}, machineConfig{backend: config.Backend{Name: "beta.io"}, Config: largeItems})
	n.isUp(1)
	n.runtimes[1].Fill(100) // about 1 MB
	_, err := listContainers(nil).streamed(n)
	require.NoError(t, err)
	m := n.proxy.memory
	m.ExpectNothing() // all is taken as it comes
	_, err = listContainers(nil).streamed(n)
	require.NoError(t, err)
	testkit.Eventually(t, "all is given back", func() bool { runtime.GC(); return taken(n) == 0 })
	m.ExpectNothing()
	const left = 256 << 10
	require.True(t, m.Reserve(total(n)-left))
	_, err = listContainers(nil).streamed(n)
	testkit.AssertCode(t, codes.ResourceExhausted, err)
	assert.ErrorContains(t, err, "raise GOMEMLIMIT")
	assert.NotEqual(t, lastknown.Gone, n.proxy.backends()[1].known.State().Condition, "it is none of the runtime's doing")
	m.Release(total(n) - left)
	_, err = listContainers(nil).streamed(n)
	require.NoError(t, err)
}

// How long a reply will be nobody knows. One for which there is no room is sent; but who
// does not read such replies gets no more of them.
func TestAConnectionWithUnreadRepliesMakesNoNewCalls(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	const much = 3 << 20
	p := n.run(0, "web", 0)
	made, err := n.CreateContainer(n.ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: p.sandbox, SandboxConfig: p.config, Config: &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Image: &runtimeapi.ImageSpec{Image: "busybox"},
		Annotations: map[string]string{"much": strings.Repeat("x", much)},
	}})
	require.NoError(t, err)
	request, err := codec.FrameOf(&runtimeapi.ContainerStatusRequest{ContainerId: made.GetContainerId()})
	require.NoError(t, err)
	m := n.proxy.memory
	require.True(t, m.Reserve(total(n)))
	defer m.Release(total(n))
	deaf := testkit.Dialed(t, n.cfg.Listen)
	version := func() error {
		_, err := runtimeapi.NewRuntimeServiceClient(deaf).Version(n.ctx(), &runtimeapi.VersionRequest{})
		return err
	}
	ask := func(ctx context.Context) grpc.ClientStream {
		t.Helper()
		cs, err := deaf.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, runtimeapi.RuntimeService_ContainerStatus_FullMethodName, grpc.ForceCodecV2(codec.Raw))
		require.NoError(t, err)
		require.NoError(t, cs.SendMsg(request))
		require.NoError(t, cs.CloseSend())
		_, err = cs.Header() // it has answered, and more than fits into gRPC's window
		require.NoError(t, err)
		return cs
	}
	cs := ask(n.ctx())
	err = version()
	testkit.AssertCode(t, codes.ResourceExhausted, err)
	assert.ErrorContains(t, err, "this connection has not read")
	_, err = n.Version(n.ctx(), &runtimeapi.VersionRequest{})
	assert.NoError(t, err, "others go on")
	var reply codec.Frame
	require.NoError(t, cs.RecvMsg(&reply), "it gets its reply")
	assert.Greater(t, reply.Len(), much)
	require.Error(t, cs.RecvMsg(&codec.Frame{}))
	assert.NoError(t, version())

	gone, leave := context.WithCancel(n.ctx())
	ask(gone)
	leave()
	testkit.Eventually(t, "who does not want its reply has nothing to read", func() bool { return version() == nil })
}

// A runtime that is not told from one that hangs because there is no memory would be taken
// for gone.
func TestAReplyWaitsForRoomBeforeItIsRead(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	n.isUp(1)
	n.runtimes[1].Fill(200) // more than is not counted
	m := n.proxy.memory
	require.True(t, m.Reserve(total(n)))
	_, err := n.ListContainers(n.ctx(), &runtimeapi.ListContainersRequest{})
	testkit.AssertCode(t, codes.ResourceExhausted, err)
	assert.ErrorContains(t, err, "raise GOMEMLIMIT")
	assert.Equal(t, lastknown.Up, n.state(1).Condition, "it is none of the runtime's doing")
	go func() {
		time.Sleep(100 * time.Millisecond)
		m.Release(total(n))
	}()
	_, err = n.ListContainers(n.ctx(), &runtimeapi.ListContainersRequest{})
	require.NoError(t, err, "there is room in time")
}

func TestAListThatHangsKeepsWhatHasCome(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil, machineConfig{Config: largeItems}, machineConfig{backend: config.Backend{Name: "beta.io"}, Config: largeItems})
	n.isUp(1)
	n.runtimes[0].Fill(200)
	n.runtimes[1].Fill(200) // each about 2 MB a list
	list := func(ctx context.Context) (int, error) {
		r, err := n.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
		return len(r.GetContainers()), err
	}
	got, err := list(n.ctx())
	require.NoError(t, err)
	require.Equal(t, 400, got)
	m := n.proxy.memory
	testkit.Eventually(t, "all is given back", func() bool { return taken(n) == 0 })
	n.runtimes[1].When(testkit.Hanging("ListContainers"))
	ctx, cancel := context.WithCancel(n.ctx())
	done := make(chan error, 1)
	go func() { _, err := list(ctx); done <- err }()
	whole, _ := m.Expect(runtimeapi.RuntimeService_ListContainers_FullMethodName)
	require.Greater(t, whole, int64(3<<20))
	testkit.Eventually(t, "what has not come is given back, but for what may come unasked", func() bool {
		taken := taken(n)
		return taken > whole/2 && taken < whole*5/8+director.StreamWindow
	})
	n.runtimes[1].When(nil)
	cancel()
	require.Error(t, <-done)
	got, err = list(n.ctx())
	require.NoError(t, err)
	require.Equal(t, 400, got)
	testkit.Eventually(t, "all is given back", func() bool { return taken(n) == 0 })
}
