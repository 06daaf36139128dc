package outage_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/testing/testkit"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// An outage is the absence or slowness of one runtime.
type outage struct {
	kind   byte          // K: killed, later started; S: stopped; R: ended by SIGTERM, and started at once; L: late
	by     time.Duration // delay of a late runtime's lists and statuses
	length time.Duration // at least; during may make it longer
	also   string        // what else happens, for the table

	first    bool // the first runtime is away, not the second
	anew     bool // the kubelet is restarted, and must find out which pods are ready
	quiet    bool // the test changes nothing on the other runtime
	harmless bool // assert that the outage changes nothing
	unseen   bool // call during even if criproxy has not noticed the outage

	age time.Duration // how old the kubelet's view may become, if that is more than usual

	during func(*testing.T) // called when criproxy has noticed
	before func(*testing.T) // called right before the runtime comes back
	back   func(*testing.T) // called right after
}

func (o outage) String() string {
	text := string(o.kind)
	if o.by > 0 {
		text = fmt.Sprintf("%g s late, ", o.by.Seconds())
	}
	if o.length > 0 {
		text += fmt.Sprint(o.length.Seconds())
	}
	if o.also != "" {
		text += ", " + o.also
	}
	return text
}

// maxAge bounds the age of the kubelet's view of the pods. A relist asks about one pod after the other. If a pod has just
// changed, as one that was removed a while ago does, the call about it waits until criproxy takes the hanging runtime for
// gone. A longer outage that stopped relists would make the view older still; for a shorter one this would allow that.
func (o outage) maxAge() time.Duration {
	age := max(o.age, maxPLEGAge)
	if hang := backend.DefaultSilence + 4*time.Second; o.kind == 'S' && o.length > hang {
		age = max(age, hang)
	}
	return age
}

// bound bounds how long something may take on the other runtime that usually takes so long.
func (o outage) bound(usual time.Duration) time.Duration {
	slack := 3 * time.Second
	if o.soon() == "slow" { // criproxy waits for its budget once for each kind of answer
		slack += 2 * time.Second
	}
	return 3*usual + slack
}

// suffer runs an outage, watches the pods all the time, and reports.
func (n *node) suffer(t *testing.T, o outage) row {
	t.Helper()
	away, other := n.two, n.one
	if o.first {
		away, other = other, away
	}
	r := row{lane: n.lane, outage: o.String(), usually: n.usually}
	mine := func(all map[string][]task) map[string][]task { // without the pods that the test adds and removes
		maps.DeleteFunc(all, func(pod string, _ []task) bool { return !slices.Contains(lasting, pod) })
		return all
	}
	before, others, counted := mine(n.tasks(t, away)), mine(n.tasks(t, other)), n.restarts(t)
	testkit.Eventually(t, o.backend()+" is up", func() bool { return n.backend(t, o).State == "up" })
	told := n.backend(t, o)
	at := n.mark(t)
	n.say("%s begins", o)
	began := time.Now()
	watch := n.watch(before, o.anew)
	switch o.kind {
	case 'K':
		require.NoError(t, away.Kill())
	case 'S':
		require.NoError(t, away.Freeze())
	case 'R':
		require.NoError(t, away.Terminate(t.Context()))
	case 'L':
		n.slowness.Set(o.by, lists...)
	}
	if o.kind != 'R' {
		if !o.unseen {
			n.awaitProxy(t, at, 20*time.Second, "Backend is "+o.soon(), o.backend())
			n.say("%s: criproxy noticed after %s", o, time.Since(began).Round(100*time.Millisecond))
		}
		if o.during != nil {
			o.during(t)
		}
		if !o.quiet {
			r.restart = n.killOn(t, other)
			for again := range 3 { // the machine may be busy for a moment; what the outage slows is slow each time
				if again > 0 {
					n.say("%s: a pod came after %s and went after %s; is that so again?", o, seconds(r.come), seconds(r.gone))
				}
				if r.come, r.gone = n.comeAndGo(t, other); r.come < o.bound(n.usualCome) && r.gone < o.bound(n.usualGone) {
					break
				}
			}
		}
		n.tell(o, began)
		time.Sleep(time.Until(began.Add(o.length)))
		for pod, all := range before {
			for _, x := range all {
				if o.harmless && x.Start != "" {
					assert.True(t, x.alive(), "%s: the process of pod %s lives on", o, pod)
				}
			}
		}
		if o.before != nil {
			o.before(t)
		}
		if o.harmless {
			r.remembered = n.toldSo(t, o, told)
		}
	}
	end := n.mark(t)
	switch o.kind {
	case 'S':
		require.NoError(t, away.Thaw())
	case 'L':
		n.slowness.Set(0)
	default:
		require.NoError(t, away.Start(t.Context()))
	}
	if o.kind != 'R' { // criproxy may not even notice
		n.awaitProxy(t, end, time.Minute, "Backend is up", o.backend())
		assert.Equal(t, "up", n.backend(t, o).State)
	}
	n.say("%s: back after %s", o, time.Since(began).Round(100*time.Millisecond))
	if o.back != nil {
		o.back(t)
	}
	if o.harmless {
		n.awaitHealth(t, lasting...)
	}
	n.awaitRelists(t, 3)
	n.say("%s: all is well again after %s", o, time.Since(began).Round(100*time.Millisecond))
	var strange []string
	r.age, strange = watch.end()
	if n.evented {
		r.age, r.noAge = 0, "evented"
	}

	after := mine(n.tasks(t, away))
	for pod, count := range n.restarts(t) {
		if _, ours := before[pod]; ours {
			r.restarts += int(count - counted[pod])
		}
	}
	r.sandboxes = changes(before, after, func(x task) string { return x.Sandbox })
	r.pids = changes(before, after, func(x task) string { return fmt.Sprint(x.PID, x.Start) })
	if o.harmless {
		assert.Equal(t, before, after, "%s: sandboxes, containers and processes are the same", o)
		assert.Zero(t, r.restarts, "%s: the kubelet counts no restart", o)
		assert.Empty(t, strange, "%s: the pods look all the time as they did before", o)
		assert.Empty(t, n.kubeletSaid(t, at, "Event occurred", "Liveness probe failed"), o)
		if !n.evented {
			assert.Less(t, r.age, o.maxAge(), "%s: the kubelet's view stays fresh", o)
		}
		if !o.first || o.kind == 'L' {
			assert.Empty(t, n.afterStart(n.kubeletSaid(t, at, "Skipping pod synchronization")), "%s: the node is ready", o)
		}
		if o.kind == 'L' && !o.unseen {
			n.onceEach(t, at, o)
		}
		if !o.quiet && o.kind != 'R' {
			if r.restart >= o.bound(n.usually) || r.come >= o.bound(n.usualCome) || r.gone >= o.bound(n.usualGone) {
				n.say("%s: that was slow; is it usual by now?", o) // the machine may be busier than at the beginning
				n.measure(t, other)
			}
			assert.Less(t, r.restart, o.bound(n.usually), "%s: a killed container on the other runtime is back as fast as ever (%s)", o, n.usually)
			assert.Less(t, r.come, o.bound(n.usualCome), "%s: a pod comes up on the other runtime as fast as ever (%s)", o, n.usualCome)
			assert.Less(t, r.gone, o.bound(n.usualGone), "%s: a pod goes on the other runtime as fast as ever (%s)", o, n.usualGone)
		}
		if o.quiet && !o.unseen {
			assert.Equal(t, others, mine(n.tasks(t, other)), "%s: nor does the other runtime", o)
		}
	}
	report(r)
	return r
}

// lasting are the pods that must survive everything.
var lasting = []string{"first", "settled", "plain", "probed", "never"}

// afterStart drops messages that a kubelet logs only right after its start, before its first view.
func (n *node) afterStart(lines []string) []string {
	return slices.DeleteFunc(lines, func(line string) bool { return strings.Contains(line, "status check may not have completed yet") })
}

// tell prints how long the outage will take, if it takes long.
func (n *node) tell(o outage, began time.Time) {
	if left := time.Until(began.Add(o.length)); left > 5*time.Second {
		n.say("%s: the other runtime works; %s to go", o, left.Round(time.Second))
	}
}

// measure measures the speed of a runtime without an outage. The slowest measurement counts.
func (n *node) measure(t *testing.T, rt *runtimes.Containerd) {
	t.Helper()
	for range 2 { // the second restart has a back-off, the first has none
		n.usually = max(n.usually, n.killOn(t, rt))
	}
	come, gone := n.comeAndGo(t, rt)
	n.usualCome, n.usualGone = max(n.usualCome, come), max(n.usualGone, gone)
	n.say("usually a restart takes %s, a new pod %s, its end %s", seconds(n.usually), seconds(n.usualCome), seconds(n.usualGone))
}

// awaitRelists waits for the given number of relists. A kubelet that uses events rarely relists: for it, awaitRelists
// waits for that many updates of pods; each pod is updated every ten seconds.
func (n *node) awaitRelists(t *testing.T, times float64) {
	t.Helper()
	counter := "kubelet_pleg_relist_duration_seconds_count"
	if n.evented {
		counter = "kubelet_pod_worker_duration_seconds_count{"
	}
	before := -1.0
	require.Eventually(t, func() bool {
		metrics, err := n.kubelet.Metrics(t.Context())
		if err != nil {
			return false
		}
		now := 0.0
		for name, value := range metrics {
			if strings.HasPrefix(name, counter) {
				now += value
			}
		}
		if before < 0 {
			before = now
		}
		return now >= before+times
	}, time.Minute, 100*time.Millisecond, "the kubelet looks at its pods")
}

// A watcher watches the kubelet's view of some pods.
type watcher struct {
	stop, stopped chan struct{}
	once          sync.Once
	oldest        time.Duration
	strange       []string
}

// watch begins to watch the kubelet's view of pods, until end or the test's end. A restarted kubelet may not know at once which pods are
// ready.
func (n *node) watch(pods map[string][]task, anew bool) *watcher {
	w := &watcher{stop: make(chan struct{}), stopped: make(chan struct{})}
	first := map[string]string{} // :: pod → its first state
	go func() {
		defer close(w.stopped)
		for i := 0; ; i++ {
			select {
			case <-w.stop:
				return
			case <-n.ctx.Done(): // the test has failed before end
				return
			case <-time.After(500 * time.Millisecond): // the kubelet itself looks once a second
			}
			if i%2 == 0 { // it is in whole seconds
				if age, err := n.kubelet.PLEGAge(n.ctx); err == nil {
					w.oldest = max(w.oldest, age)
				}
			}
			all, err := n.kubelet.Pods(n.ctx)
			if err != nil {
				continue // the kubelet is restarting
			}
			for _, pod := range all {
				name := n.short(pod.ObjectMeta)
				if _, watched := pods[name]; !watched {
					continue
				}
				now := look(pod, anew)
				if now == "" {
					continue
				}
				if first[name] == "" {
					first[name] = now
				}
				if now != first[name] {
					w.strange = append(w.strange, fmt.Sprintf("%s: %s (it was %s)", name, now, first[name]))
					first[name] = now
				}
			}
		}
	}()
	return w
}

// look describes a pod. It returns "" while the kubelet may not know the pod's state.
func look(pod corev1.Pod, anew bool) string {
	if anew && len(pod.Status.ContainerStatuses) == 0 {
		return ""
	}
	text := string(pod.Status.Phase)
	for _, c := range pod.Status.ContainerStatuses {
		state := "running"
		switch {
		case c.State.Waiting != nil:
			state = c.State.Waiting.Reason
		case c.State.Terminated != nil:
			state = c.State.Terminated.Reason
		}
		text += fmt.Sprintf(", %s %.20s, restarts %d", state, c.ContainerID, c.RestartCount)
		if !anew {
			text += fmt.Sprintf(", ready %t", c.Ready)
		}
	}
	return text
}

// end stops the watcher and returns the greatest age of the kubelet's view, and the changes that it has seen.
func (w *watcher) end() (oldest time.Duration, strange []string) {
	w.once.Do(func() { close(w.stop) })
	<-w.stopped
	return w.oldest, w.strange
}
