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
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/testing/markdown"
	"github.com/criproxy/criproxy/internal/testing/testkit"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

var (
	chaosSeed   = flag.Uint64("chaos.seed", 1, "what the faults are drawn by")
	chaosSteps  = flag.Int("chaos.steps", 13, "how many there are in each mode of ids; with 13 each once")
	chaosTimes  = flag.Bool("chaos.times", false, "fail if calls end long after their deadline: a busy machine does that, too")
	chaosClock  = flag.Bool("chaos.clock", false, "also set the MACHINE'S clock hours ahead and back, for seconds at a time")
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
	{"criproxy hands over to another process", handOver},
	{"clients vanish in the middle of calls", vanish},
	{"clients end calls at once, leave half a connection, and send garbage", rudely},
	{"a client reads a few bytes at a time", readSlowly},
	{"kill -9 of a runtime in the middle of making a pod", killWhileRunning},
}

// TestChaosOnRealParts injects faults, and checks the invariants after each: no list was short at any time, no mutating
// call has reached a runtime twice, no call has outlasted its deadline, criproxy shows what the runtimes hold, its recording has
// each call as its client saw it, and its process has no more open than before.
func TestChaosOnRealParts(t *testing.T) {
	for i, ids := range []string{config.PrefixIDs, config.NativeIDs} {
		t.Run(ids, func(t *testing.T) { play(t, *chaosSeed+uint64(i), ids) })
	}
}

func play(t *testing.T, seed uint64, ids string) {
	w := newWorld(t, seed, ids)
	faults := faults
	if *chaosClock {
		faults = append(slices.Clone(faults), fault{"the machine's clock is set by hours", jump})
	}
	w.settle()
	watching := w.watch()
	w.overrun(0)
	var before level
	w.eventually("it can be asked", func() (err error) { before, err = w.levelNow(); return err })
	injected, most := map[string]int{}, before
	var overrun, excuse time.Duration
	compared := 0
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
		compared += w.evidence()
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
				err = before.leaked(now, more)
			}
			if err == nil {
				most = most.max(now)
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
	require.Greater(t, compared, 10**chaosSteps, "calls were compared")

	var report strings.Builder
	fmt.Fprintf(&report, "| fault | injected, and survived |\n|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(injected)) {
		fmt.Fprintf(&report, "| %s | %d |\n", name, injected[name])
	}
	fmt.Fprintf(&report, "\n%d pairs of lists of pods and containers were answered meanwhile, none of them short; the longest took %s, the longest time without one was %s.\n",
		watching.lists, round(watching.longest), round(watching.unreachable))
	fmt.Fprintf(&report, "%d mutating calls reached the runtimes, by their own logs, none of them twice. A call that hangs was over at most %s after its deadline; a timer of the test was %s late meanwhile.\n",
		mutations, round(overrun), round(excuse))
	fmt.Fprintf(&report, "The recording had calls as their clients saw them, at %d comparisons.\n", compared)
	fmt.Fprintf(&report, "criproxy's process had %s before, and at most %s after any step.\n", before, most)
	t.Logf("\n%s", report.String())
	w.breakIt()
	if *chaosReport != "" && !t.Failed() {
		command := fmt.Sprintf("make chaos CHAOS_SEED=%d CHAOS_STEPS=%d", *chaosSeed, *chaosSteps)
		if *chaosClock {
			command += " CHAOS_CLOCK=1"
		}
		require.NoError(t, markdown.Section(*chaosReport, "With ids of the form "+ids, command, report.String()))
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
		_, err := w.client.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: w.pods[1-i][0].container})
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

// connect returns a further client, and a function that cuts its connections off, as the kernel does when a process ends.
// slow says that it reads a few bytes at a time.
func (w *world) connect(slow bool) (client runtimeapi.RuntimeServiceClient, cut func()) {
	var mu sync.Mutex
	var conns []net.Conn
	wire := &testkit.Wire{}
	wire.Slow.Store(slow)
	cc, err := runtimes.Dial(w.proxy.Socket(), grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", w.proxy.Socket())
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			conns = append(conns, conn)
		}
		return &testkit.WireConn{Conn: conn, Wire: wire}, err
	}))
	w.require(err)
	cut = sync.OnceFunc(func() {
		mu.Lock()
		defer mu.Unlock()
		for _, conn := range conns {
			conn.Close()
		}
		cc.Close() // an error changes nothing
	})
	w.Cleanup(cut)
	client = runtimeapi.NewRuntimeServiceClient(cc)
	_, err = client.ListContainers(w.Context(), &runtimeapi.ListContainersRequest{})
	w.require(err)
	return client, cut
}

// vanish makes clients begin calls of all kinds, and then disappear.
func vanish(w *world, i int) {
	var cuts []func()
	var calls sync.WaitGroup
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	defer cancel()
	for range 3 {
		client, cut := w.connect(false)
		cuts = append(cuts, cut)
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
	for _, cut := range cuts {
		cut()
	}
	calls.Wait()
}

// rudely makes clients do with HTTP/2 what none should.
func rudely(w *world, _ int) {
	client, cut := w.connect(false)
	defer cut()
	for range 20 {
		ctx, cancel := context.WithCancel(w.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = client.ListContainers(ctx, &runtimeapi.ListContainersRequest{}) // it is cut off
		}()
		w.pause(time.Millisecond)
		cancel()
		<-done
	}
	const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	for _, text := range []string{preface, preface + "\xff\xff\xff\x09\xff\x7f\xff\xff\xff and so on"} {
		conn, err := net.Dial("unix", w.proxy.Socket())
		w.require(err)
		_, _ = conn.Write([]byte(text)) // criproxy may have closed it
		_ = conn.(*net.UnixConn).CloseWrite()
		defer conn.Close() // an error changes nothing
	}
}

func readSlowly(w *world, i int) {
	client, cut := w.connect(true)
	defer cut()
	for range 3 {
		_, err := client.ListContainers(w.Context(), &runtimeapi.ListContainersRequest{})
		w.require(err)
		_, err = client.ContainerStatus(w.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: w.pods[i][0].container, Verbose: true})
		w.require(err)
	}
}

// jump sets the machine's clock by hours, in both directions. Meanwhile a runtime is killed, and found again, within the usual
// times. The clock is then set right by the monotonic one.
func jump(w *world, i int) {
	read := func(clock int32) time.Duration {
		var ts unix.Timespec
		w.require(unix.ClockGettime(clock, &ts))
		return time.Duration(ts.Nano())
	}
	set := func(to time.Duration) error {
		tv := unix.NsecToTimeval(int64(to))
		return unix.Settimeofday(&tv)
	}
	wall, steady := read(unix.CLOCK_REALTIME), read(unix.CLOCK_MONOTONIC)
	right := func() time.Duration { return wall + read(unix.CLOCK_MONOTONIC) - steady }
	defer w.witness.forget()
	defer func() { require.NoError(w, set(right()), "THE CLOCK OF THIS MACHINE IS WRONG by hours") }()
	for _, by := range []time.Duration{5 * time.Hour, -5 * time.Hour} {
		w.require(set(right() + by)) // this takes CAP_SYS_TIME
		w.away(i, w.runtimes[i].Kill, func() error { return w.runtimes[i].Start(w.Context()) })
		w.isUp(i)
	}
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
		w.require(inTime(overrun, 4*timers))
	}
}

// The checks of the invariants fail when these are broken; for the others see level_test.go.
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
