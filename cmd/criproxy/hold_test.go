package main

import (
	"context"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/director"
)

// Nobody knows how long the first reply of a method will be, and a kubelet asks for the
// status of each pod at once.
func TestHungStatusCallsLeaveMemoryForLists(t *testing.T) {
	p := newProcess(t)
	p.env = append(os.Environ(), "GOMEMLIMIT=512MiB")
	for _, m := range p.runtimes {
		m.Fill(100)
		m.when(hanging("PodSandboxStatus", "ContainerStatus"))
	}
	p.launch()
	client := runtimeapi.NewRuntimeServiceClient(p.connect(p.front))
	images := runtimeapi.NewImageServiceClient(p.connect(p.front))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var pods *runtimeapi.ListPodSandboxResponse
	eventually(t, "both runtimes are there", func() (both bool) {
		var err error
		pods, err = client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		require.NoError(t, err)
		return len(pods.GetItems()) == 200
	})
	for _, pod := range pods.GetItems() {
		go func() {
			_, _ = client.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod.GetId()}) // hangs
		}()
	}
	hang := func(n int) bool {
		return len(p.runtimes[0].Calls("PodSandboxStatus"))+len(p.runtimes[1].Calls("PodSandboxStatus")) >= n
	}
	eventually(t, "some of them hang", func() bool { return hang(2) })
	for range 20 {
		_, err := client.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
		require.NoError(t, err)
		_, err = client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		require.NoError(t, err)
		_, err = images.ListImages(ctx, &runtimeapi.ListImagesRequest{})
		require.NoError(t, err)
	}
	eventually(t, "all of them hang", func() bool { return hang(200) })
	cancel()
	p.end()
}

// A runtime that is not told from one that hangs because there is no memory would be taken
// for gone.
func TestAReplyWaitsForRoomBeforeItIsRead(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	n.isUp(1)
	n.runtimes[1].Fill(200) // more than is not counted
	m := n.proxy.memory
	require.True(t, m.free.TryAcquire(m.total))
	_, err := n.ListContainers(n.ctx(), &runtimeapi.ListContainersRequest{})
	assertCode(t, codes.ResourceExhausted, err)
	assert.ErrorContains(t, err, "raise GOMEMLIMIT")
	assert.True(t, n.proxy.backends()[1].known.State().Up, "it is none of the runtime's doing")
	go func() {
		time.Sleep(100 * time.Millisecond)
		m.free.Release(m.total)
	}()
	_, err = n.ListContainers(n.ctx(), &runtimeapi.ListContainersRequest{})
	require.NoError(t, err, "there is room in time")
}

func TestAListThatHangsKeepsWhatHasCome(t *testing.T) {
	t.Parallel()
	n := newNode(t, func(c *Config) { c.ListBudget = patience })
	n.isUp(1)
	n.runtimes[0].Fill(2000)
	n.runtimes[1].Fill(2000) // each about 2 MB a list
	list := func(ctx context.Context) (int, error) {
		r, err := n.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
		return len(r.GetContainers()), err
	}
	got, err := list(n.ctx())
	require.NoError(t, err)
	require.Equal(t, 4000, got)
	m := n.proxy.memory
	eventually(t, "all is given back", func() bool { return m.taken.Load() == 0 })
	n.runtimes[1].when(hanging("ListContainers"))
	ctx, cancel := context.WithCancel(n.ctx())
	done := make(chan error, 1)
	go func() { _, err := list(ctx); done <- err }()
	whole, _ := m.expect(runtimeapi.RuntimeService_ListContainers_FullMethodName)
	require.Greater(t, whole, int64(3<<20))
	eventually(t, "what has not come is given back, but for what may come unasked", func() bool {
		taken := m.taken.Load()
		return taken > whole/2 && taken < whole*5/8+director.StreamWindow
	})
	n.runtimes[1].when(nil)
	cancel()
	require.Error(t, <-done)
	got, err = list(n.ctx())
	require.NoError(t, err)
	require.Equal(t, 4000, got)
	eventually(t, "all is given back", func() bool { return m.taken.Load() == 0 })
}

// A list of 4 messages of which 2 come late.
func TestAPromiseIsAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const window = director.StreamWindow
		m := newHolder()
		m.total, m.maxMessage = 64*window, 16*window
		m.free = semaphore.NewWeighted(m.total)
		m.lists(8 * window)
		h := m.call()
		require.NoError(t, h.begin(t.Context()))
		assert.EqualValues(t, 8*window, m.taken.Load())
		time.Sleep(2 * lullTime)
		assert.EqualValues(t, window, m.taken.Load(), "a runtime may send that much unasked")
		require.NoError(t, h.room(t.Context()))
		assert.EqualValues(t, 8*window, m.taken.Load(), "one answers")
		time.Sleep(2 * lullTime)
		assert.EqualValues(t, 8*window, m.taken.Load(), "it is still coming")
		h.arrived(4 * window)
		time.Sleep(2 * lullTime)
		assert.EqualValues(t, 5*window, m.taken.Load(), "the other one hangs")
		require.NoError(t, h.room(t.Context()))
		h.arrived(5 * window)
		assert.EqualValues(t, 9*window, m.taken.Load(), "more than was expected")
		h.sends(9 * window)
		assert.EqualValues(t, 9*window, m.taken.Load())
		h.done()
		m.isFree(t)
	})
}

// What is known goes on to be asked for when the client has gone, or has its answer.
func TestRepliesOfACallThatIsOverNeedNoRoom(t *testing.T) {
	m := newHolder()
	m.lists(unknownSize)
	h := m.call()
	h.done()
	require.True(t, m.free.TryAcquire(m.total))
	require.NoError(t, h.room(t.Context()))
	h.arrived(large)
	m.free.Release(m.total)
	m.isFree(t)
}
