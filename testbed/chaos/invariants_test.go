package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// A watcher requests lists from criproxy all the time. They may fail, but must not be short.
type watcher struct {
	stop        func()
	mu          sync.Mutex // guards the fields below, until the watcher has stopped
	lists       int        // answered lists
	failures    int
	short       error         // about the first short list
	longest     time.Duration // of all lists
	unreachable time.Duration // the longest time without an answer
}

// watch starts a watcher, which compares each list with the items that were stable before and after it.
func (w *world) watch() *watcher {
	ctx, cancel := context.WithCancel(context.Background())
	watching := &watcher{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		answered := time.Now()
		for ctx.Err() == nil {
			before := w.mustBeListed()
			began := time.Now()
			got, err := ids(ctx, w.client)
			watching.mu.Lock()
			if err != nil {
				watching.failures++
			} else {
				watching.lists++
				watching.longest = max(watching.longest, time.Since(began))
				watching.unreachable = max(watching.unreachable, time.Since(answered))
				answered = time.Now()
				if err := short(got, before, w.mustBeListed()); err != nil && watching.short == nil {
					watching.short = fmt.Errorf("%s: %w", time.Now().Format("15:04:05.000"), err)
				}
			}
			watching.mu.Unlock()
			time.Sleep(5 * time.Millisecond)
		}
	}()
	watching.stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	w.Cleanup(watching.stop)
	return watching
}

// mustBeListed returns the front ids that every list must have now.
func (w *world) mustBeListed() map[string]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := map[string]bool{}
	for id := range w.stable {
		all[id] = true
	}
	return all
}

func ids(ctx context.Context, c runtimeapi.RuntimeServiceClient) (map[string]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	all := map[string]bool{}
	pods, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return nil, err
	}
	containers, err := c.ListContainers(ctx, &runtimeapi.ListContainersRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return nil, err
	}
	for _, p := range pods.GetItems() {
		all[p.GetId()] = true
	}
	for _, c := range containers.GetContainers() {
		all[c.GetId()] = true
	}
	return all, nil
}

// short returns an error if got lacks an item that was stable before and after.
func short(got, before, after map[string]bool) error {
	for id := range before {
		if after[id] && !got[id] {
			return fmt.Errorf("a list of %d items lacks %s", len(got), id)
		}
	}
	return nil
}

// settle waits until criproxy shows exactly the items of the runtimes, which must all be up.
func (w *world) settle() {
	w.Helper()
	w.eventually("criproxy shows what there is", func() error {
		var want []string
		for i, c := range w.direct {
			of, err := listed(w.Context(), c, func(id string) string { return w.front(i, id) })
			if err != nil {
				return err
			}
			want = append(want, of...)
		}
		got, err := listed(w.Context(), w.kubelet, func(id string) string { return id })
		if err != nil {
			return err
		}
		return same(want, got)
	})
}

// mutation matches a line of containerd's log about the arrival of a mutating call.
var mutation = regexp.MustCompile(`msg="((?:RunPodSandbox|StopPodSandbox|RemovePodSandbox|CreateContainer|StartContainer|StopContainer|RemoveContainer) .*)"`)

// mutations counts the mutating calls in the log of a runtime. This test makes no two equal ones.
func mutations(log string) (all int, twice error) {
	seen := map[string]int{}
	for line := range strings.Lines(log) {
		m := mutation.FindStringSubmatch(line)
		if m == nil || strings.Contains(m[1], " returns ") || strings.Contains(m[1], " failed") {
			continue
		}
		all++
		seen[m[1]]++
	}
	return all, onceEach(seen)
}

// mutated reads the logs of both runtimes.
func (w *world) mutated() (all int, err error) {
	for _, rt := range w.runtimes {
		data, readErr := os.ReadFile(rt.LogFile())
		w.require(readErr)
		n, twice := mutations(string(data))
		all, err = all+n, errors.Join(err, twice)
	}
	return all, err
}

// overrun makes an endless call with a short deadline. It returns how long after the deadline the client had an answer,
// or criproxy, according to its log, had finished the call; and how late the test's own timers were. If the machine
// stalls, the deadline may pass before the call is sent; overrun then tries again. If all attempts fail like this, it
// returns zeros: there is nothing to judge.
func (w *world) overrun(i int) (took, excuse time.Duration) {
	w.Helper()
	for range 20 {
		took, excuse, measured := w.measureOverrun(i)
		if measured {
			return took, excuse
		}
	}
	w.Log("the machine stands still too often: the end of a call after its deadline was not measured")
	return 0, 0
}

// measureOverrun is one attempt of overrun.
func (w *world) measureOverrun(i int) (took, excuse time.Duration, measured bool) {
	w.Helper()
	const little, pause = 300 * time.Millisecond, time.Millisecond
	conn, err := runtimes.Dial(w.proxy.Socket())
	w.require(err)
	defer conn.Close() // an error changes nothing
	client := runtimeapi.NewRuntimeServiceClient(conn)
	connecting, cancel := context.WithTimeout(w.Context(), patience)
	_, _ = client.Version(connecting, &runtimeapi.VersionRequest{}, grpc.WaitForReady(true)) // the primary may be away
	cancel()
	_, from, err := w.proxy.LogLines(0)
	w.require(err)
	w.mu.Lock()
	container := w.pods[i][0].container
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(w.Context(), little)
	defer cancel()
	late := make(chan time.Duration, 1)
	go func() { // measures how late timers are on this machine
		var worst time.Duration
		for ctx.Err() == nil {
			slept := time.Now()
			time.Sleep(pause)
			worst = max(worst, time.Since(slept)-pause)
		}
		late <- worst
	}()
	began := time.Now()
	_, err = client.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: container, Cmd: []string{"app"}})
	took = time.Since(began) - little
	require.Error(w, err)
	if excuse = <-late; excuse > little/3 {
		return 0, 0, false
	}
	w.eventually("criproxy is done with it", func() error {
		lines, _, err := w.proxy.LogLines(from, `/ExecSync"`, "took=")
		if err != nil || len(lines) == 0 {
			return errors.Join(err, errors.New("it does not say so"))
		}
		_, text, _ := strings.Cut(lines[0], `took="`)
		text, _, _ = strings.Cut(text, `"`)
		in, err := time.ParseDuration(text)
		took = max(took, in-little)
		return err
	})
	return took, excuse, true
}

// more is the growth that does not count as a leak: connections of clients that come and go, and memory that Go has not
// returned yet. With the race detector the latter is several times as much.
var more = level{goroutines: 15, files: 5, live: 8 << 20, resident: 96 << 20}

// levelNow measures the level with the help of the kernel and criproxy.
func (w *world) levelNow() (l level, err error) {
	pid, ok := w.proxy.PID()
	if !ok {
		return l, errors.New("criproxy does not run")
	}
	text, err := w.ask("/debug/pprof/goroutine?debug=1")
	if err != nil {
		return l, err
	}
	first, _, _ := strings.Cut(text, "\n")
	l.goroutines, err = strconv.Atoi(strings.TrimPrefix(first, "goroutine profile: total "))
	if err != nil {
		return l, err
	}
	if text, err = w.ask("/debug/pprof/heap?gc=1&debug=1"); err != nil {
		return l, err
	}
	_, alloc, _ := strings.Cut(text, "\n# HeapAlloc = ")
	alloc, _, _ = strings.Cut(alloc, "\n")
	l.live, err = strconv.ParseInt(alloc, 10, 64)
	l.files, l.resident = host.OpenFiles(pid), resident(pid)
	return l, err
}
