package server

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// A fault is something that goes wrong. It is over when do returns, except after the steps of
// the history.
type fault struct {
	name string // empty for a step of the history, which names itself
	of   whose
	do   func(i int) // the runtime
}

// whose says which runtime has a fault.
type whose int

const (
	anyRuntime     whose = iota // any runtime, up or gone
	runningRuntime              // one that is up
	noRuntime                   // none, so calls to all runtimes go on as usual
)

// faults are all, some more often.
func (c *chaos) faults() []fault {
	all := []fault{
		{"a mutating call, whatever becomes of it", noRuntime, func(int) { c.mutate(c.rand.IntN(len(c.runtimes))) }},
		{"a client vanishes in the middle of calls", noRuntime, func(int) { c.vanish() }},
		{"a client reads a few bytes at a time", noRuntime, func(int) { c.readSlowly() }},
		{"reset streams", noRuntime, func(int) { c.resetStreams() }},
		{"half-closed connection", noRuntime, func(int) { c.talk(preface) }},
		{"garbage for HTTP/2", noRuntime, func(int) { c.talk(preface + "\xff\xff\xff\x09\xff\x7f\xff\xff\xff and so on") }},
		{"a storm of GOAWAY from a runtime", runningRuntime, c.storm},
		{"a runtime reads a few bytes at a time", runningRuntime, c.readsSlowly},
		{"the socket file of a runtime is deleted, and it is restarted", runningRuntime, c.loseFile},
		{"criproxy's own socket file is deleted", noRuntime, func(int) { c.loseOwnFile() }},
		{"the disk of the capture is full", noRuntime, func(int) { c.fullDisk() }},
	}
	for range 7 {
		all = append(all, fault{"", anyRuntime, c.randomStep})
	}
	return all
}

// preface is the beginning of a client's connection.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// talk connects, sends text and closes the connection.
func (c *chaos) talk(text string) {
	conn, err := net.Dial("unix", c.cfg.Listen)
	require.NoError(c, err)
	defer conn.Close()              // closing it is the fault
	_, _ = conn.Write([]byte(text)) // the proxy may have closed it
	_ = conn.(*net.UnixConn).CloseWrite()
}

func (c *chaos) resetStreams() {
	for range 20 {
		ctx, cancel := context.WithCancel(c.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = c.ListContainers(ctx, &runtimeapi.ListContainersRequest{}) // it is cut off
		}()
		if c.rand.IntN(2) == 0 {
			runtime.Gosched()
		}
		cancel()
		<-done
	}
}

// client returns a further client, whose connection may have faults.
func (c *chaos) client(w *testkit.Wire) (runtimeapi.RuntimeServiceClient, func()) {
	var conns []net.Conn
	var mu sync.Mutex
	cc, err := grpc.NewClient("unix:"+c.cfg.Listen, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, "unix", c.cfg.Listen)
			if err != nil {
				return nil, err
			}
			mu.Lock()
			defer mu.Unlock()
			conns = append(conns, conn)
			return &testkit.WireConn{Conn: conn, Wire: w}, nil
		}))
	require.NoError(c, err)
	return runtimeapi.NewRuntimeServiceClient(cc), func() {
		mu.Lock()
		defer mu.Unlock()
		for _, conn := range conns {
			conn.Close() // as the kernel does when a process ends
		}
		cc.Close() // the error would change nothing
	}
}

// vanish is a client that disappears in the middle of its calls: lists, a stream of events, numbered mutations, and calls
// that hang.
func (c *chaos) vanish() {
	there := c.there(-1)
	for _, i := range there {
		c.runtimes[i].When(testkit.Hanging("ReopenContainerLog"))
		defer c.runtimes[i].When(nil)
	}
	client, vanish := c.client(&testkit.Wire{})
	var calls sync.WaitGroup
	for range 5 {
		calls.Go(func() { _, _ = client.ListContainers(c.ctx(), &runtimeapi.ListContainersRequest{}) }) // these may fail
	}
	for _, i := range there {
		c.sent++
		ctx := metadata.AppendToOutgoingContext(c.ctx(), "chaos", fmt.Sprint(c.sent))
		calls.Go(func() {
			_, _ = client.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: c.probe.containers[i]})
		})
		calls.Go(func() {
			_, _ = client.ReopenContainerLog(c.ctx(), &runtimeapi.ReopenContainerLogRequest{ContainerId: c.probe.containers[i]})
		})
	}
	events, err := client.GetContainerEvents(c.ctx(), &runtimeapi.GetEventsRequest{})
	require.NoError(c, err)
	testkit.Eventually(c, "it hangs", func() bool { return c.proxy.sockets()[0].Limits.Calls.Load() >= int64(len(there)) })
	vanish()
	calls.Wait()
	for err == nil {
		_, err = events.Recv()
	}
	testkit.Eventually(c, "its calls have ended", func() bool { return c.proxy.sockets()[0].Limits.Calls.Load() <= 1 }) // but the probe's
}

// readSlowly is a client that reads its replies a few bytes at a time.
func (c *chaos) readSlowly() {
	w := &testkit.Wire{}
	w.Slow.Store(true)
	client, end := c.client(w)
	defer end()
	for range 3 {
		_, err := client.ListContainers(c.ctx(), &runtimeapi.ListContainersRequest{})
		require.NoError(c, err)
	}
	if there := c.there(-1); len(there) > 0 {
		_, err := client.ExecSync(c.ctx(), &runtimeapi.ExecSyncRequest{ContainerId: c.probe.containers[there[0]], Cmd: []string{"echo", strings.Repeat("x", 64<<10)}})
		if status.Code(err) != codes.Unknown { // Unknown: the container has exited
			require.NoError(c, err)
		}
	}
}

// storm makes runtime i send GOAWAY to the proxy again and again while calls run. No call fails.
func (c *chaos) storm(i int) {
	w := c.runtimes[i].Wire
	before := w.Goaways.Load()
	w.Storm.Store(true)
	defer w.Storm.Store(false)
	var calls sync.WaitGroup
	for range 4 {
		calls.Go(func() {
			for range 25 {
				if _, err := c.ListContainers(c.ctx(), &runtimeapi.ListContainersRequest{}); err != nil {
					c.Errorf("a list failed in a storm of GOAWAY: %v", err)
					return
				}
			}
		})
	}
	for range 10 {
		c.sent++
		_, err := c.UpdateContainerResources(metadata.AppendToOutgoingContext(c.ctx(), "chaos", fmt.Sprint(c.sent)),
			&runtimeapi.UpdateContainerResourcesRequest{ContainerId: c.probe.containers[i]})
		require.NoError(c, err)
	}
	calls.Wait()
	require.Greater(c, w.Goaways.Load(), before+10)
	c.isUp(i)
}

// readsSlowly makes runtime i read a large request a few bytes at a time.
func (c *chaos) readsSlowly(i int) {
	w := c.runtimes[i].Wire
	w.Slow.Store(true)
	defer w.Slow.Store(false)
	c.sent++
	_, err := c.UpdateContainerResources(metadata.AppendToOutgoingContext(c.ctx(), "chaos", fmt.Sprint(c.sent)),
		&runtimeapi.UpdateContainerResourcesRequest{ContainerId: c.probe.containers[i], Annotations: map[string]string{"long": strings.Repeat("x", 16<<10)}})
	require.NoError(c, err)
}

// loseFile removes the socket file of runtime i. That changes nothing until the runtime restarts,
// and the restart is like any other.
func (c *chaos) loseFile(i int) {
	require.NoError(c, os.Remove(c.runtimes[i].Path))
	c.look()
	_, err := c.ContainerStatus(c.ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: c.probe.containers[i]})
	require.NoError(c, err)
	c.gone[i] = c.holds(i)
	c.runtimes[i].Kill()
	c.isDown(i)
	c.look()
	c.comeBack(i)
}

// loseOwnFile removes the proxy's own socket file. Connected clients do not notice, and new clients
// find a new file.
func (c *chaos) loseOwnFile() {
	require.NoError(c, os.Remove(c.cfg.Listen))
	c.look()
	testkit.Eventually(c, "the socket is there again", func() bool { return testkit.Connects(c.cfg.Listen) })
	client, end := c.client(&testkit.Wire{})
	defer end()
	all, err := client.ListContainers(c.ctx(), &runtimeapi.ListContainersRequest{})
	require.NoError(c, err)
	known, err := c.ListContainers(c.ctx(), &runtimeapi.ListContainersRequest{})
	require.NoError(c, err)
	require.Len(c, all.GetContainers(), len(known.GetContainers()))
}

// fullDisk fills the disk of the capture for a while.
func (c *chaos) fullDisk() {
	c.fillDisk()
	r := c.proxy.record
	testkit.Eventually(c, "that is noticed", func() bool { c.look(); return r.State().Failing })
	require.NoError(c, os.Remove(filepath.Join(filepath.Dir(c.cfg.Capture.Path), "ballast")))
	testkit.Eventually(c, "it is captured again", func() bool { c.look(); return !r.State().Failing })
	require.Positive(c, r.State().Failures)
}
