package main

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// greedy are clients of a socket that make as many calls as they can: lists, streams of events, and calls
// that the runtime does not answer. They end some of these and make them again.
type greedy struct {
	clients []runtimeapi.RuntimeServiceClient
	refused atomic.Int64 // because there are too many
	wg      sync.WaitGroup
}

// keep makes calls that hang until ctx ends, or are refused.
func (g *greedy) keep(ctx context.Context, calls int) {
	for i := range calls {
		client := g.clients[i%len(g.clients)]
		g.wg.Go(func() { g.hang(ctx, client) })
	}
}

// take makes the clients use all remaining calls until ctx ends.
func (g *greedy) take(ctx context.Context) {
	for _, client := range g.clients {
		g.wg.Go(func() {
			for ctx.Err() == nil {
				within, cancel := context.WithCancel(ctx)
				for range 10 {
					g.wg.Go(func() { g.subscribe(within, client) })
					g.wg.Go(func() { g.hang(within, client) })
				}
				_, _ = client.ListContainers(within, &runtimeapi.ListContainersRequest{}) // may be refused
				time.Sleep(50 * time.Millisecond)                                         // leaves CPU time for kubelet
				cancel()
			}
		})
	}
}

// subscribe opens a stream that lasts until ctx ends.
func (g *greedy) subscribe(ctx context.Context, client runtimeapi.RuntimeServiceClient) {
	events, err := client.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	for err == nil {
		_, err = events.Recv()
	}
	if status.Code(err) == codes.ResourceExhausted {
		g.refused.Add(1)
	}
}

// hang makes a call that the runtime does not answer before ctx ends. A stream of events would not
// do: all subscribers of a runtime share one.
func (g *greedy) hang(ctx context.Context, client runtimeapi.RuntimeServiceClient) {
	_, err := client.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: "hangs"})
	if status.Code(err) == codes.ResourceExhausted {
		g.refused.Add(1)
	}
}

// Every user may connect to the README's socket for readers. The limits here are a sixteenth of the defaults, because
// thousands of calls take minutes with the race detector.
func TestReadersLeaveRoomForKubelet(t *testing.T) {
	t.Parallel()
	const maxCalls, sideCalls = config.DefaultMaxCalls / 16, config.DefaultSideCalls / 16
	for sockets, calls := range map[int]int{1: maxCalls + 20, 5: sideCalls + 10} {
		t.Run(fmt.Sprintf("from %d sockets", sockets), func(t *testing.T) {
			p := newProcess(t)
			text := fmt.Sprintf("  maxCalls: %d\n- {name: beta.io, address: %s/1.sock, maxCalls: %d}\nlistBudget: 30s\nlisteners:\n", maxCalls, p.dir, maxCalls)
			var readers []*greedy
			for i := range sockets {
				path := filepath.Join(p.dir, fmt.Sprintf("read%d.sock", i))
				text += fmt.Sprintf("- path: %s\n  maxCalls: %d\n  mode: '0666'\n  access: [{methods: [read-only]}]\n", path, sideCalls)
				r := &greedy{}
				for range 2 {
					r.clients = append(r.clients, runtimeapi.NewRuntimeServiceClient(p.connect(path)))
				}
				readers = append(readers, r)
			}
			p.writeAll(text)
			p.launch()
			var arrived atomic.Int64
			p.runtimes[0].When(testkit.On(func(ctx context.Context, _ string, _ any) error {
				arrived.Add(1)
				<-ctx.Done()
				return ctx.Err()
			}, "ContainerStatus"))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			for _, r := range readers {
				r.keep(ctx, calls)
			}
			testkit.Eventually(t, "the readers have all that they get", func() bool {
				decided := arrived.Load()
				for _, r := range readers {
					decided += r.refused.Load()
				}
				return decided == int64(sockets*calls)
			})
			for _, r := range readers {
				assert.Positive(t, r.refused.Load())
				r.take(ctx)
			}
			kubelet := runtimeapi.NewRuntimeServiceClient(p.connect(p.front))
			for i := range 20 {
				_, err := kubelet.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
				require.NoError(t, err, "list %d", i)
				_, err = kubelet.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
				require.NoError(t, err, "list %d", i)
				_, err = kubelet.Version(ctx, &runtimeapi.VersionRequest{}) // no cache answers it
				require.NoError(t, err, "call %d", i)
			}
			cancel()
			for _, r := range readers {
				r.wg.Wait()
			}
		})
	}
}
