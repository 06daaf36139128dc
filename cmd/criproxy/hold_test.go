package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/lastknown"
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
	assert.Equal(t, lastknown.Up, n.state(1).Condition, "it is none of the runtime's doing")
	go func() {
		time.Sleep(100 * time.Millisecond)
		m.free.Release(m.total)
	}()
	_, err = n.ListContainers(n.ctx(), &runtimeapi.ListContainersRequest{})
	require.NoError(t, err, "there is room in time")
}

func TestAListThatHangsKeepsWhatHasCome(t *testing.T) {
	t.Parallel()
	n := newNode(t, func(c *config.Config) { c.ListBudget = patience })
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

// A request to a runtime may go on after the client has left or has its answer.
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

// A call that waits for room is made as a stream. Nobody is to notice.
func TestACallInRoomIsAsAnyOther(t *testing.T) {
	reply := codec.NewFrame(bytes.Repeat([]byte{0x0a, 0x01, 'x'}, 1<<20))
	l, err := net.Listen("unix", filepath.Join(socketDir(t), "r.sock"))
	require.NoError(t, err)
	server := grpc.NewServer(grpc.ForceServerCodecV2(codec.Raw), grpc.UnknownServiceHandler(func(_ any, ss grpc.ServerStream) error {
		md, _ := metadata.FromIncomingContext(ss.Context())
		ss.SetTrailer(metadata.Pairs("after", "b"))
		if err := ss.RecvMsg(&codec.Frame{}); err != nil {
			return err
		}
		switch md.Get("do")[0] {
		case "answer":
			return errors.Join(ss.SetHeader(metadata.Pairs("before", "a")), ss.SendMsg(reply))
		case "fail":
			return status.Error(codes.NotFound, "there is none")
		case "fail late":
			return errors.Join(ss.SendMsg(reply), status.Error(codes.DataLoss, "it is wrong"))
		case "answer twice":
			return errors.Join(ss.SendMsg(reply), ss.SendMsg(reply))
		}
		return nil // and no reply
	}))
	go server.Serve(l) // ends with the test
	t.Cleanup(server.Stop)
	conn, err := director.NewConn(director.ConnConfig{Name: "beta.io", Address: l.Addr().String()})
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() }) // nothing is left to be done
	c := newBoundedConn(conn, "beta.io", 1)
	call := func(do string, counted bool) (f *codec.Frame, header, trailer metadata.MD, err error) {
		m := newHolder()
		m.maxMessage = 4 * large
		m.who.socket = &socket{}
		m.who.socket.main.Store(true)
		m.lists(unknownSize)
		ctx := metadata.AppendToOutgoingContext(t.Context(), "do", do)
		h := m.call()
		if counted {
			ctx = context.WithValue(ctx, holdKey{}, h)
		}
		m.total = 16 * large
		m.free = semaphore.NewWeighted(m.total)
		f = &codec.Frame{}
		err = c.Invoke(ctx, "/a.B/C", &codec.Frame{}, f, grpc.Header(&header), grpc.Trailer(&trailer))
		h.done()
		m.isFree(t)
		assert.Zero(t, c.calls.n.Load())
		return f, header, trailer, err
	}
	for _, do := range []string{"answer", "fail", "fail late"} {
		f, header, trailer, err := call(do, true)
		plain, plainHeader, plainTrailer, plainErr := call(do, false)
		assert.Equal(t, status.Convert(plainErr).Proto().String(), status.Convert(err).Proto().String(), do)
		assert.Equal(t, plainHeader, header, do)
		assert.Equal(t, plainTrailer, trailer, do)
		if plainErr == nil {
			assert.True(t, bytes.Equal(plain.Bytes(), f.Bytes()), do)
		}
	}
	_, _, _, err = call("answer twice", true)
	assertCode(t, codes.Internal, err)
	_, _, _, err = call("nothing", true)
	assertCode(t, codes.Internal, err)
}
