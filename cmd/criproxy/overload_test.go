package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/capture"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/lastknown"
)

func openFiles(t testing.TB, pid int) int {
	t.Helper()
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	require.NoError(t, err)
	return len(all)
}

// under holds calls under way at runtime i: the function begins one, and returns when it
// has come there.
func (n *node) under(i int) (begin func(ctx context.Context, p *pod) <-chan error, thaw func()) {
	var come atomic.Int64
	ice := make(chan struct{})
	n.runtimes[i].when(on(func(ctx context.Context, _ string, _ any) error {
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
		eventually(n, "a call is there", func() bool { return come.Load() > before })
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
	assertCode(t, codes.ResourceExhausted, err)
	assert.ErrorContains(t, err, n.cfg.Listen+" has 2 calls under way, which is its limit")
	thaw()
	require.NoError(t, <-one)
	require.NoError(t, <-two)
	_, err = n.Version(n.ctx(), &runtimeapi.VersionRequest{})
	assert.NoError(t, err, "there is room again")
	eventually(t, "nothing is left over", func() bool { return n.proxy.sockets[0].calls.Load() == 0 })
}

func TestCallsOverTheLimitOfABackendAreRefusedThereAndNowhereElse(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil, machineConfig{}, machineConfig{backend: config.Backend{Name: "beta.io", MaxCalls: 2}})
	n.isUp(1)
	here, there := n.run(0, "web", 1), n.run(1, "db", 1)
	begin, thaw := n.under(1)
	one, two := begin(n.ctx(), there), begin(n.ctx(), there)
	_, err := n.UpdateContainerResources(n.ctx(), &runtimeapi.UpdateContainerResourcesRequest{ContainerId: there.containers[0]})
	assertCode(t, codes.ResourceExhausted, err)
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
	n := newNode(t, func(c *config.Config) { c.ListBudget = time.Minute }) // long lists, on a machine that does much else
	n.isUp(1)
	n.runtimes[1].Fill(2000) // about 2 MB a list
	large := strings.Repeat("x", 3<<20)
	// gRPC forgets to free what it was to send on a stream that has ended: then it is
	// the garbage collector that gives it back.
	allGivenBack := func() {
		t.Helper()
		eventually(t, "all is given back", func() bool { runtime.GC(); return n.proxy.memory.taken.Load() == 0 })
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
	assertCode(t, codes.ResourceExhausted, err)
	assert.ErrorContains(t, err, "more than the limit of 16777216")
	_, err = n.Version(n.ctx(), &runtimeapi.VersionRequest{Version: strings.Repeat("x", 17<<20)}, grpc.UseCompressor(gzip.Name))
	assertCode(t, codes.ResourceExhausted, err)
	assert.ErrorContains(t, err, "when it is decompressed")
	allGivenBack()
}

// The reader of messages is gRPC's, whose type has no name: should it be another one in a
// new version, requests would be counted too late.
func TestARequestTakesMemoryBeforeItComes(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	n.proxy.memory.free.TryAcquire(n.proxy.memory.total) // all is taken
	ctx, cancel := context.WithTimeout(t.Context(), 4*memoryWait)
	defer cancel()
	cc := n.cc
	cs, err := cc.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, "/runtime.v1.RuntimeService/Version", grpc.ForceCodecV2(codec.Raw))
	require.NoError(t, err)
	require.NoError(t, cs.SendMsg(codec.NewFrame(bytes.Repeat([]byte{0x0a, 0x01, 'x'}, 4<<20))))
	err = cs.RecvMsg(&codec.Frame{})
	assertCode(t, codes.ResourceExhausted, err)
	assert.ErrorContains(t, err, "no memory for a message of 12582912 bytes")
	_, err = n.Version(n.ctx(), &runtimeapi.VersionRequest{})
	assert.NoError(t, err, "small messages need none")
	n.proxy.memory.free.Release(n.proxy.memory.total)
}

func TestAThousandSubscribersGetEveryEvent(t *testing.T) {
	const subscribers = 1000
	p := newProcess(t)
	p.launch()
	ctx, cancel := context.WithTimeout(t.Context(), 8*patience)
	defer cancel()
	client := runtimeapi.NewRuntimeServiceClient(p.connect(p.front))
	var got sync.WaitGroup
	for i := range subscribers {
		if i%50 == 49 {
			eventually(t, "those before are subscribed at both", func() bool {
				return len(p.runtimes[0].Calls("GetContainerEvents")) >= i && len(p.runtimes[1].Calls("GetContainerEvents")) >= i
			})
		}
		stream, err := client.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
		require.NoError(t, err)
		got.Go(func() {
			for range 2 {
				if _, err := stream.Recv(); !assert.NoError(t, err) {
					return
				}
			}
		})
	}
	eventually(t, "all are subscribed at both", func() bool {
		return len(p.runtimes[0].Calls("GetContainerEvents")) >= subscribers && len(p.runtimes[1].Calls("GetContainerEvents")) >= subscribers
	})
	for i, target := range []string{"", "beta.io"} {
		_, err := client.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
			Metadata:    &runtimeapi.PodSandboxMetadata{Name: fmt.Sprint("p", i), Namespace: "n", Uid: fmt.Sprint("u", i)},
			Annotations: map[string]string{"kubernetes.io/target-runtime": target},
		}})
		require.NoError(t, err)
	}
	got.Wait()
	cancel()
	p.end()
}

func TestAProcessWithoutFileDescriptorsServesAgainWhenThereAreSome(t *testing.T) {
	p := newProcess(t)
	pid := p.launch().Process.Pid
	n := uint64(openFiles(t, pid) + 20)
	few := unix.Rlimit{Cur: n, Max: n}
	require.NoError(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &few, nil))
	client := runtimeapi.NewRuntimeServiceClient(p.connect(p.front))
	_, err := client.Version(t.Context(), &runtimeapi.VersionRequest{})
	require.NoError(t, err)
	var all []net.Conn
	for range 100 {
		c, err := net.Dial("unix", p.front)
		require.NoError(t, err)
		all = append(all, c)
	}
	_, err = client.Version(t.Context(), &runtimeapi.VersionRequest{})
	require.NoError(t, err, "who is connected is served")
	for _, c := range all {
		c.Close()
	}
	_, err = runtimeapi.NewRuntimeServiceClient(p.connect(p.front)).Version(t.Context(), &runtimeapi.VersionRequest{}, grpc.WaitForReady(true))
	require.NoError(t, err)
	p.end()
}

func TestTheMemoryForMessagesFollowsGOMEMLIMIT(t *testing.T) {
	const mib = 1 << 20
	assert.EqualValues(t, 1024*mib, memoryFor(1<<63-1, 8*mib, 16*mib), "no limit")
	assert.EqualValues(t, (512-128-8)/4*mib, memoryFor(512*mib, 8*mib, 16*mib))
	assert.EqualValues(t, 96*mib, memoryFor(512*mib, -1, 16*mib), "nothing is recorded")
	assert.EqualValues(t, 64*mib, memoryFor(200*mib, 8*mib, 16*mib), "four messages must fit")
}

// What a runtime streams is kept until its end has come: it may be more than there is
// memory for.
func TestAListThatARuntimeStreamsTakesMemoryAsItComes(t *testing.T) {
	t.Parallel()
	n := newNode(t, func(c *config.Config) { c.ListBudget = patience }) // the machine may be busy
	n.isUp(1)
	n.runtimes[1].Fill(1000) // about 1 MB
	_, err := listContainers(nil).streamed(n)
	require.NoError(t, err)
	m := n.proxy.memory
	for _, size := range m.sizes {
		size.Store(0) // nothing is expected: all is taken as it comes
	}
	_, err = listContainers(nil).streamed(n)
	require.NoError(t, err)
	eventually(t, "all is given back", func() bool { runtime.GC(); return m.taken.Load() == 0 })
	for _, size := range m.sizes {
		size.Store(0)
	}
	const left = 256 << 10
	require.True(t, m.free.TryAcquire(m.total-left))
	_, err = listContainers(nil).streamed(n)
	assertCode(t, codes.ResourceExhausted, err)
	assert.ErrorContains(t, err, "raise GOMEMLIMIT")
	assert.NotEqual(t, lastknown.Gone, n.proxy.backends()[1].known.State().Condition, "it is none of the runtime's doing")
	m.free.Release(m.total - left)
	_, err = listContainers(nil).streamed(n)
	require.NoError(t, err)
}

// How long a reply will be nobody knows. One for which there is no room is sent; but who
// does not read such replies gets no more of them.
func TestAConnectionThatDoesNotReadItsRepliesMakesNoNewCalls(t *testing.T) {
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
	require.True(t, m.free.TryAcquire(m.total))
	defer m.free.Release(m.total)
	deaf := dialed(t, n.cfg.Listen)
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
	assertCode(t, codes.ResourceExhausted, err)
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
	eventually(t, "who does not want its reply has nothing to read", func() bool { return version() == nil })
}

// What was to be sent on a call that has ended gRPC does not free.
func TestADebtIsPaidByWhatIsReclaimed(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // nobody else does it
	var d debt
	d.add(1)
	codec.NewFrame(make([]byte, 1<<20)).OnFree(func() { d.pay(1) })
	eventually(t, "it is paid", func() bool { return d.wait(t.Context()) == 0 })
}

func TestTheDocsHaveTheFormulaOfTheProgram(t *testing.T) {
	data, err := os.ReadFile("../../docs/operations.md")
	require.NoError(t, err)
	const mib = 1 << 20
	for _, text := range []string{
		fmt.Sprintf("(GOMEMLIMIT - %d MiB - flight recorder) / %d        at least %d messages of the largest size", baseMemory/mib, copies, leastMessages),
		fmt.Sprintf("set `GOMEMLIMIT` to %d MiB + %d·N·S", (baseMemory+capture.DefaultBytes)/mib, copies),
		fmt.Sprintf("With 512 MiB that is %d MiB of messages", memoryFor(512*mib, capture.DefaultBytes, 16*mib)/mib),
		fmt.Sprintf("follows `GOMEMLIMIT`, below; %d GiB without it", defaultMemory>>30),
		fmt.Sprintf("waits for up to %s, then fails", memoryWait),
		fmt.Sprintf("`maxCalls` of the listener: %d on the main one, %d on each other one", config.DefaultMaxCalls, config.DefaultSideCalls),
		fmt.Sprintf("`maxCalls` of the backend, %d", config.DefaultMaxCalls),
		fmt.Sprintf("`-max-message-bytes`, %d MiB", director.DefaultMaxMessage/mib),
		fmt.Sprintf("`-flight-recorder`, %d MiB", capture.DefaultBytes/mib),
		fmt.Sprintf("what is remembered of a runtime | %d MiB", lastknown.DefaultMaxBytes/mib),
		fmt.Sprintf("If nothing comes for %s", lullTime),
		fmt.Sprintf("within %s (half of `listBudget`, %s at most)", lastknown.DefaultBudget/2, memoryWait),
		fmt.Sprintf("but for %d MiB, which the runtime may send unasked", director.StreamWindow/mib),
		fmt.Sprintf("Messages below %d KiB are not counted", smallMessage>>10),
	} {
		assert.Contains(t, strings.Join(strings.Fields(string(data)), " "), strings.Join(strings.Fields(text), " "))
	}
	assert.EqualValues(t, 94*mib, memoryFor(512*mib, capture.DefaultBytes, 16*mib), "the example")
}
