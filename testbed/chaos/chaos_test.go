package chaos

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/testing/invariant"
	"github.com/criproxy/criproxy/internal/testing/markdown"
)

var (
	chaosSeed   = flag.Uint64("chaos.seed", 1, "what the faults are drawn by")
	chaosSteps  = flag.Int("chaos.steps", 10, "how many there are; with 10 each once")
	chaosTimes  = flag.Bool("chaos.times", false, "fail if calls end long after their deadline: a busy machine does that, too")
	chaosReport = flag.String("chaos.report", "", "write what happened into a section of `FILE`")
)

// A fault causes a failure of runtime i. Everything works again when do returns, or soon after.
type fault struct {
	name string
	do   func(w *world, i int)
}

var faults = []fault{
	{"nothing but a pod that comes and one that goes", comeAndGo},
	{"kill -9 of a runtime", func(w *world, i int) { w.away(i, w.runtimes[i].Kill, w.start(i)) }},
	{"a runtime hangs (SIGSTOP)", hang},
	{"restart of a runtime", func(w *world, i int) {
		w.require(w.runtimes[i].Terminate(w.Context()))
		w.require(w.runtimes[i].Start(w.Context()))
	}},
	{"kill -9 of criproxy", func(w *world, _ int) { w.restartProxy() }},
	{"kill -9 of criproxy while a runtime is away", func(w *world, i int) {
		w.away(i, w.runtimes[i].Kill, func() error { w.restartProxy(); w.isDown(i); return w.runtimes[i].Start(w.Context()) })
	}},
	{"the socket file of a runtime is deleted, and it is restarted", func(w *world, i int) {
		w.require(os.Remove(w.runtimes[i].Socket()))
		w.pause(time.Second)
		w.require(w.runtimes[i].Terminate(w.Context()))
		w.require(w.runtimes[i].Start(w.Context()))
	}},
	{"criproxy's own socket file is deleted", func(w *world, _ int) {
		w.require(os.Remove(w.proxy.Socket()))
		w.eventually("it is there again", func() error { _, err := os.Stat(w.proxy.Socket()); return err })
	}},
	{"clients vanish in the middle of calls", vanish},
	{"kill -9 of a runtime in the middle of making a pod", killWhileRunning},
}

// TestChaosOnRealParts injects faults, and checks the invariants after each: no list was short at any time, no mutating
// call has reached a runtime twice, no call has outlasted its deadline, criproxy shows what the runtimes hold, and its
// process has no more open than before.
func TestChaosOnRealParts(t *testing.T) {
	w := newWorld(t, *chaosSeed)
	w.settle()
	watching := w.watch()
	w.overrun(0)
	var before invariant.Level
	w.eventually("it can be asked", func() (err error) { before, err = w.levelNow(); return err })
	injected, most := map[string]int{}, before
	var overrun, excuse time.Duration
	var deck []fault // each fault is drawn once before any is drawn again
	began := time.Now()
	for range *chaosSteps {
		if len(deck) == 0 {
			deck = slices.Clone(faults)
			w.rand.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		}
		f, i := deck[0], w.rand.IntN(2)
		deck = deck[1:]
		w.tell("%s (%d)", f.name, i)
		injected[f.name]++
		f.do(w, i)
		for j := range w.runtimes {
			w.isUp(j)
		}
		w.settle()
		w.require(watching.shortest())
		_, err := w.mutated()
		w.require(err)
		took, timers := w.overrun(i)
		w.inTime(took, timers)
		if took-timers > overrun-excuse {
			overrun, excuse = took, timers
		}
		w.eventually("criproxy has nothing open that it had not before", func() error {
			now, err := w.levelNow()
			if err == nil {
				err = before.Leaked(now, more)
			}
			if err == nil {
				most = most.Max(now)
			}
			return err
		})
		t.Logf("%5.1fs  %s (%d)", time.Since(began).Seconds(), f.name, i)
	}
	watching.stop()
	w.require(watching.short)
	require.Greater(t, watching.lists, 10**chaosSteps, "it was looked")
	mutations, err := w.mutated()
	w.require(err)
	require.Greater(t, mutations, 4*4, "the runtimes' logs say so")

	var report strings.Builder
	fmt.Fprintf(&report, "| fault | injected, and survived |\n|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(injected)) {
		fmt.Fprintf(&report, "| %s | %d |\n", name, injected[name])
	}
	fmt.Fprintf(&report, "\n%d pairs of lists of pods and containers were answered meanwhile, none of them short; the longest took %s, the longest time without one was %s.\n",
		watching.lists, round(watching.longest), round(watching.unreachable))
	fmt.Fprintf(&report, "%d mutating calls reached the runtimes, by their own logs, none of them twice. A call that hangs was over at most %s after its deadline; a timer of the test was %s late meanwhile.\n",
		mutations, round(overrun), round(excuse))
	fmt.Fprintf(&report, "criproxy's process had %s before, and at most %s after any step.\n", before, most)
	t.Logf("\n%s", report.String())
	w.breakIt()
	if *chaosReport != "" && !t.Failed() {
		command := fmt.Sprintf("make chaos CHAOS_SEED=%d CHAOS_STEPS=%d", *chaosSeed, *chaosSteps)
		require.NoError(t, markdown.Section(*chaosReport, "Real parts", command, report.String()))
	}
}

// breakIt deletes criproxy's memory of a runtime that is away, so that lists are short, which the test must notice.
func (w *world) breakIt() {
	w.Helper()
	w.require(w.runtimes[1].Kill())
	w.require(w.proxy.Kill())
	w.require(os.RemoveAll(filepath.Join(w.proxy.Dir, "state")))
	w.require(w.proxy.Start(w.Context()))
	watching := w.watch()
	w.eventually("the list is short, and that is noticed", func() error {
		if watching.shortest() == nil {
			return errors.New("the short list was not noticed")
		}
		return nil
	})
	watching.stop()
	w.require(w.runtimes[1].Start(w.Context()))
	w.isUp(1)
	w.settle()
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

// shortest returns the error of the first short list, while the watcher goes on.
func (w *watcher) shortest() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.short
}

// pause lets a fault last.
func (w *world) pause(most time.Duration) { time.Sleep(time.Duration(w.rand.Int64N(int64(most)))) }

// start returns a function that starts runtime i again after a while.
func (w *world) start(i int) func() error {
	return func() error { w.pause(2 * time.Second); return w.runtimes[i].Start(w.Context()) }
}

// away stops runtime i, makes calls to the other one, and starts runtime i again.
func (w *world) away(i int, take, bring func() error) {
	w.Helper()
	w.require(take())
	w.isDown(i)
	w.others(i)
	w.require(bring())
}

// others makes calls to the other runtime, which must not fail.
func (w *world) others(i int) {
	w.Helper()
	for range 20 {
		ctx, cancel := context.WithTimeout(w.Context(), patience)
		_, err := w.kubelet.ContainerStatus(ctx, w.pods[1-i][0].container, false)
		cancel()
		w.require(err)
	}
}

// restartProxy kills criproxy and starts it again. The watcher checks its first list, too.
func (w *world) restartProxy() {
	w.Helper()
	w.require(w.proxy.Kill())
	w.require(w.proxy.Launch())
	w.eventually("the kubelet's client is connected again", func() error {
		_, err := w.kubelet.ListPodSandbox(w.Context(), nil)
		return err
	})
}

func comeAndGo(w *world, i int) {
	w.require(w.run(i))
	w.require(w.remove(i))
}

func hang(w *world, i int) {
	w.require(w.runtimes[i].Freeze())
	took, excuse := w.overrun(i)
	w.inTime(took, excuse)
	w.isDown(i)
	w.others(i)
	w.pause(2 * time.Second)
	w.require(w.runtimes[i].Thaw())
}

// vanish makes clients begin calls of all kinds, and then disappear.
func vanish(w *world, i int) {
	var mu sync.Mutex
	var conns []net.Conn
	var calls sync.WaitGroup
	for range 3 {
		cc, err := grpc.NewClient("unix:"+w.proxy.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				conn, err := (&net.Dialer{}).DialContext(ctx, "unix", w.proxy.Socket())
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					conns = append(conns, conn)
				}
				return conn, err
			}))
		w.require(err)
		defer cc.Close() // an error changes nothing
		client := runtimeapi.NewRuntimeServiceClient(cc)
		ctx, cancel := context.WithTimeout(w.Context(), patience)
		defer cancel()
		_, err = client.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
		w.require(err)
		w.made++
		config := w.runtimes[i].PodConfig(fmt.Sprint("vanishing", w.made))
		if i == 1 {
			config.Annotations["kubernetes.io/target-runtime"] = two
		}
		container := w.pods[i][0].container
		calls.Go(func() { _, _ = client.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: config}) }) // all of these may fail
		calls.Go(func() {
			_, _ = client.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: container, Cmd: []string{"app"}})
		})
		calls.Go(func() { _, _ = client.ListContainers(ctx, &runtimeapi.ListContainersRequest{}) })
	}
	w.pause(200 * time.Millisecond)
	mu.Lock()
	for _, conn := range conns {
		conn.Close() // as the kernel does when a process ends
	}
	mu.Unlock()
	calls.Wait()
}

// killWhileRunning kills runtime i at some point of creating a pod. Afterwards the runtime says whether the pod exists.
func killWhileRunning(w *world, i int) {
	done := make(chan error, 1)
	go func() { done <- w.run(i) }()
	w.pause(600 * time.Millisecond)
	w.require(w.runtimes[i].Kill())
	if err := <-done; err != nil {
		w.tell("which failed: %v", err)
	}
	w.isDown(i)
	w.require(w.runtimes[i].Start(w.Context()))
}

// inTime fails the test, with -chaos.times, if a call ended long after its deadline: later than late timers of the client,
// criproxy, the runtime and the test can explain.
func (w *world) inTime(overrun, timers time.Duration) {
	if *chaosTimes {
		w.require(invariant.InTime(overrun, 4*timers))
	}
}

// The checks of the invariants fail when these are broken. The other checks are in internal/testing/invariant.
func TestBrokenInvariantsOnRealPartsAreNoticed(t *testing.T) {
	before := map[string]bool{"a": true, "b": true}
	require.NoError(t, short(map[string]bool{"a": true, "b": true, "c": true}, before, before))
	require.Error(t, short(map[string]bool{"a": true}, before, before), "an item is left out")
	require.NoError(t, short(map[string]bool{"a": true}, before, map[string]bool{"a": true}), "it went meanwhile")

	arrived := `time="2026" level=info msg="StopPodSandbox for \"7f\""` + "\n"
	of, err := mutations(arrived + `time="2026" level=info msg="StopPodSandbox for \"7f\" returns successfully"` + "\n" + strings.ReplaceAll(arrived, "7f", "8f"))
	require.NoError(t, err)
	require.Equal(t, 2, of)
	_, err = mutations(arrived + arrived)
	require.Error(t, err, "a call is made again")
}
