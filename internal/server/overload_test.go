package server

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
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/fakecri"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// largeItems makes few items that fill a long list, because criproxy asks for the status of each.
var largeItems = fakecri.Config{ItemBytes: 9000}

// taken returns how much memory of n messages take, and total how much they may take.
func taken(n *node) int64 { taken, _, _ := n.proxy.memory.Usage(); return taken }
func total(n *node) int64 { _, total, _ := n.proxy.memory.Usage(); return total }

// under holds calls under way at runtime i. The function that it returns begins a call, and returns
// when the runtime has got it.
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
	n := newNode(t, func(c *config.Config) {
		c.Listeners, c.FlightRecorder = []config.Listener{{Path: c.Listen, MaxCalls: 2}}, 1<<20
	})
	p := n.run(0, "web", 1)
	begin, thaw := n.under(0)
	one, two := begin(n.ctx(), p), begin(n.ctx(), p)
	begun := time.Now()
	_, err := n.Version(n.ctx(), &runtimeapi.VersionRequest{})
	testkit.AssertCode(t, codes.ResourceExhausted, err)
	assert.ErrorContains(t, err, n.cfg.Listen+" has as many calls under way as its limit allows (2)")
	// The recorder has only one of many, at once or later, so that it keeps what is worth more.
	for range 5 {
		_, err := n.Status(n.ctx(), &runtimeapi.StatusRequest{})
		testkit.AssertCode(t, codes.ResourceExhausted, err)
	}
	var ev capture.Event
	refused := 0
	for f := n.proxy.record.Follow(); f.TryNext(&ev); {
		if ev.Kind == capture.End && ev.Code == codes.ResourceExhausted {
			refused++
			assert.Contains(t, ev.Message, "has as many calls under way")
		}
	}
	assert.Positive(t, refused)
	assert.LessOrEqual(t, refused, 1+int(time.Since(begun)/time.Second))
	thaw()
	require.NoError(t, <-one)
	require.NoError(t, <-two)
	_, err = n.Version(n.ctx(), &runtimeapi.VersionRequest{})
	assert.NoError(t, err, "there is room again")
	testkit.Eventually(t, "nothing is left over", func() bool { return n.proxy.sockets()[0].Limits.Calls.Load() == 0 })
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
	assert.ErrorContains(t, err, "backend beta.io has as many calls under way as its limit allows (2)")
	_, err = n.ContainerStatus(n.ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: here.containers[0]})
	assert.NoError(t, err)
	for range 3 {
		_, err := n.ListContainers(n.ctx(), &runtimeapi.ListContainersRequest{})
		testkit.AssertCode(t, codes.ResourceExhausted, err)
	}
	assert.Equal(t, backend.Up, n.state(1).Condition, "being busy is neither being slow nor being down")
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
	// The garbage collector returns memory that is not freed, such as a list in memory.
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
	assert.ErrorContains(t, err, "more than the limit of 16777216")
	allGivenBack()
}

func TestARequestTakesMemoryBeforeItComes(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	n.proxy.memory.Take(total(n)) // no memory is free
	cs, err := n.cc.NewStream(n.ctx(), &grpc.StreamDesc{ClientStreams: true}, "/runtime.v1.RuntimeService/Version", grpc.ForceCodecV2(codec.Raw))
	require.NoError(t, err)
	require.NoError(t, cs.SendMsg(codec.NewFrame(bytes.Repeat([]byte{0x0a, 0x01, 'x'}, 4<<20))))
	err = cs.RecvMsg(&codec.Frame{})
	testkit.AssertCode(t, codes.ResourceExhausted, err)
	assert.ErrorContains(t, err, "no memory for a message of 12582912 bytes")
	_, err = n.Version(n.ctx(), &runtimeapi.VersionRequest{})
	assert.NoError(t, err, "small messages need none")
	n.proxy.memory.Give(total(n))
}

// criproxy holds a streamed list until its end has come, so it may need more memory than there
// is.
func TestAListThatARuntimeStreamsTakesMemoryAsItComes(t *testing.T) {
	t.Parallel()
	one := largeItems
	one.BatchSize = 1 // so that no message is large, and only their sum is
	n := newNode(t, nil, machineConfig{}, machineConfig{backend: config.Backend{Name: "beta.io"}, Config: one})
	n.isUp(1)
	n.runtimes[1].Fill(100) // about 1 MB
	_, err := listContainers(nil).streamed(n)
	require.NoError(t, err)
	m := n.proxy.memory
	testkit.Eventually(t, "all is given back", func() bool { runtime.GC(); return taken(n) == 0 })
	const left = 256 << 10
	require.True(t, m.Take(total(n)-left))
	_, err = listContainers(nil).streamed(n)
	testkit.AssertCode(t, codes.ResourceExhausted, err)
	assert.ErrorContains(t, err, "raise GOMEMLIMIT")
	assert.NotEqual(t, backend.Gone, n.proxy.backends()[1].backend.State().Condition, "it is none of the runtime's doing")
	m.Give(total(n) - left)
	_, err = listContainers(nil).streamed(n)
	require.NoError(t, err)
}

// A client that does not read its replies uses its windows and one share of the memory. Other
// clients are not affected.
func TestAConnectionWithUnreadRepliesHasItsShare(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil, machineConfig{Config: largeItems}, machineConfig{backend: config.Backend{Name: "beta.io"}})
	n.isUp(1)
	n.runtimes[0].Fill(900) // about 8 MB a list
	deaf, err := grpc.NewClient("unix:"+n.cfg.Listen, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStaticStreamWindowSize(65535), grpc.WithStaticConnWindowSize(65535))
	require.NoError(t, err)
	defer deaf.Close()
	ctx, leave := context.WithCancel(n.ctx())
	defer leave()
	left := total(n) - 16<<20
	require.True(t, n.proxy.memory.Take(left))
	for range 20 {
		cs, err := deaf.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, runtimeapi.RuntimeService_ListContainers_FullMethodName, grpc.ForceCodecV2(codec.Raw))
		require.NoError(t, err)
		require.NoError(t, cs.SendMsg(&codec.Frame{}))
		require.NoError(t, cs.CloseSend())
	}
	testkit.Eventually(t, "some have their reply", func() bool { return taken(n) > 4<<20 })
	_, err = n.Version(n.ctx(), &runtimeapi.VersionRequest{})
	require.NoError(t, err)
	leave()
	testkit.Eventually(t, "a client that does not want its replies gives them back", func() bool { runtime.GC(); return taken(n) == 0 })
	n.proxy.memory.Give(left)
}

// A wait for memory must not count as silence of the runtime, or criproxy would consider it gone.
func TestAReplyWaitsForRoomBeforeItIsRead(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	n.isUp(1)
	n.runtimes[1].Fill(200) // more than is not counted
	m := n.proxy.memory
	require.True(t, m.Take(total(n)))
	_, err := n.ListContainers(n.ctx(), &runtimeapi.ListContainersRequest{})
	testkit.AssertCode(t, codes.ResourceExhausted, err)
	assert.ErrorContains(t, err, "raise GOMEMLIMIT")
	assert.Equal(t, backend.Up, n.state(1).Condition, "it is none of the runtime's doing")
	asked, done := len(n.runtimes[1].Calls("ListContainers")), make(chan error, 1)
	go func() {
		_, err := n.ListContainers(n.ctx(), &runtimeapi.ListContainersRequest{})
		done <- err
	}()
	testkit.Eventually(t, "the runtime is asked", func() bool { return len(n.runtimes[1].Calls("ListContainers")) > asked })
	m.Give(total(n))
	require.NoError(t, <-done, "there is room in time")
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
	testkit.Eventually(t, "all is given back", func() bool { runtime.GC(); return taken(n) == 0 })
	n.runtimes[1].When(testkit.Hanging("ListContainers"))
	ctx, cancel := context.WithCancel(n.ctx())
	done := make(chan error, 1)
	go func() { _, err := list(ctx); done <- err }()
	testkit.Eventually(t, "what has come takes memory, and nothing else", func() bool {
		taken := taken(n)
		return taken > 1<<20 && taken < 3<<20
	})
	n.runtimes[1].When(nil)
	cancel()
	require.Error(t, <-done)
	got, err = list(n.ctx())
	require.NoError(t, err)
	require.Equal(t, 400, got)
	testkit.Eventually(t, "all is given back", func() bool { runtime.GC(); return taken(n) == 0 })
}
