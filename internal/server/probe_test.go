package server

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// A probe is a client that constantly calls the runtimes that have no fault. It notes how long the
// calls take during each fault, and while there is none.
type probe struct {
	node       *node
	client     runtimeapi.RuntimeServiceClient
	containers []string // :: runtime → a container that always exists

	mu      sync.Mutex
	wake    sync.Cond
	targets []int // the runtimes that it calls
	calling bool
	now     []time.Duration            // durations of the calls in this phase
	idle    []time.Duration            // how much too long its pauses were
	failed  error                      // of the first call that failed
	took    map[string][]time.Duration // :: phase
}

// quiet is the phase without a fault.
const quiet = "quiet"

// newProbe runs a pod on each runtime, which must be up, and starts the probe.
func newProbe(t testing.TB, n *node, more ...grpc.DialOption) *probe {
	cc, err := grpc.NewClient("unix:"+n.cfg.Listen, append(more, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 10 * time.Millisecond, MaxDelay: 10 * time.Millisecond}, MinConnectTimeout: testkit.Patience}))...)
	require.NoError(t, err)
	p := &probe{node: n, client: runtimeapi.NewRuntimeServiceClient(cc), took: map[string][]time.Duration{}}
	p.wake.L = &p.mu
	for i := range n.runtimes {
		p.containers = append(p.containers, n.run(i, fmt.Sprint("probe", i), 1).containers[0])
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		p.mu.Lock()
		p.wake.Broadcast()
		p.mu.Unlock()
		<-done
		cc.Close() // the error would change nothing
	})
	return p
}

func (p *probe) run(ctx context.Context) {
	for at := 0; ctx.Err() == nil; at++ {
		p.mu.Lock()
		for len(p.targets) == 0 && ctx.Err() == nil {
			p.wake.Wait()
		}
		if ctx.Err() != nil {
			p.mu.Unlock()
			return
		}
		i := p.targets[at%len(p.targets)]
		p.calling = true
		p.mu.Unlock()
		bounded, cancel := context.WithTimeout(ctx, testkit.Patience)
		began := time.Now()
		_, err := p.client.ContainerStatus(bounded, &runtimeapi.ContainerStatusRequest{ContainerId: p.containers[i]})
		took := time.Since(began)
		cancel()
		p.mu.Lock()
		p.calling = false
		p.now = append(p.now, took)
		if err != nil && p.failed == nil && ctx.Err() == nil {
			p.failed = fmt.Errorf("a call to runtime %d, which nothing was wrong with, failed: %w", i, err)
		}
		p.wake.Broadcast()
		p.mu.Unlock()
		const pause = 500 * time.Microsecond // a client, not a load
		began = time.Now()
		time.Sleep(pause)
		p.mu.Lock()
		p.idle = append(p.idle, time.Since(began)-pause)
		p.mu.Unlock()
	}
}

// perPhase returns the least number of calls in a phase. With -chaos.times it is enough to find the
// slowest of a hundred.
func perPhase() int {
	if *chaosTimes {
		return 100
	}
	return 10
}

// during calls targets while do runs, and after that until there are enough calls. It notes them
// under the phase that do returns, unless that is empty.
func (p *probe) during(targets []int, do func() string) error {
	if len(targets) > 0 { // the client may have to connect again
		ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
		defer cancel()
		if _, err := p.client.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: p.containers[targets[0]]}, grpc.WaitForReady(true)); err != nil {
			return err
		}
	}
	p.mu.Lock()
	p.now, p.idle, p.failed, p.targets = nil, nil, nil, targets
	p.wake.Broadcast()
	p.mu.Unlock()
	phase := do()
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(targets) > 0 && phase != "" && len(p.now) < perPhase() {
		p.wake.Wait()
	}
	p.targets = nil
	for p.calling {
		p.wake.Wait()
	}
	if phase == "" {
		return nil
	}
	p.took[phase] = append(p.took[phase], p.now...)
	if p.failed != nil {
		return p.failed
	}
	if phase == quiet || len(p.now) == 0 {
		return nil
	}
	if !*chaosTimes {
		return nil
	}
	return hurt(phase, p.now, p.took[quiet], p99(p.idle))
}

// noise is how much longer a call may take because the machine is busy with other work.
const noise = 20 * time.Millisecond

// hurt returns an error if calls took clearly longer than usual. If pauses were too long as well,
// the machine was busy: a call passes between goroutines some four times.
func hurt(phase string, calls, usual []time.Duration, late time.Duration) error {
	if now, usually := p99(calls), p99(usual); now > 2*usually+noise+4*late {
		return fmt.Errorf("99 of 100 calls to runtimes that nothing was wrong with took %s during %q, and %s while it was quiet; pauses were %s late", now, phase, usually, late)
	}
	return nil
}

// of returns the calls of phase, or those of all faults if that is empty.
func (p *probe) of(phase string) []time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if phase != "" {
		return p.took[phase]
	}
	var all []time.Duration
	for phase, took := range p.took {
		if phase != quiet {
			all = append(all, took...)
		}
	}
	return all
}

// p99 is the time that 99 of 100 do not exceed.
func p99(took []time.Duration) time.Duration {
	if len(took) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(took))
	return sorted[(len(sorted)*99+99)/100-1]
}
