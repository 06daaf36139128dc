package why_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// old is the name of the second runtime.
const old = "old.io"

// A trouble is something that happens to a pod, a fault or its twin: what looks alike and is well.
type trouble struct {
	name string
	pod  string
	at   time.Duration                             // when it begins; the other times are after that
	do   func(t *testing.T, n *node) (undo func()) // it must not wait
	undo time.Duration
	end  time.Duration // when the pod is deleted; 0 means never, or in do
	ask  []question
	also string // what may be said of each pod of the runtime with whose name it begins
}

// A question is what criproxy why is asked, and what it must say: about the pod of a trouble, and about the node. About
// another pod it must say nothing.
type question struct {
	after time.Duration
	says  string // a regular expression; empty means nothing at all, of this pod
	lasts bool   // it makes why fail
	pod   string // empty means the one of the trouble
}

// troubles happen on each node. Two things that would change each other happen one after the other: kubelet pulls one image
// at a time.
var troubles = []trouble{
	{name: "slow-start", pod: "idle", ask: []question{{}}},
	{name: "cni-sleeps", pod: "slow", at: 5 * time.Second, do: func(t *testing.T, n *node) func() {
		undo := n.onCNI(t, "ADD", "slow", "sleep 300")
		n.add(t, pod("slow", "sleep"))
		return undo
	}, undo: 250 * time.Second, end: 410 * time.Second, ask: []question{
		{after: 100 * time.Second, says: `testbed/slow\S+ waits for its RunPodSandbox, which has been under way for \dm`, lasts: true},
		{after: 270 * time.Second, says: `primary is too slow for the sandbox of testbed/slow`, lasts: true},
		{after: 400 * time.Second, says: `primary was too slow for the sandbox of testbed/slow\S+: kubelet gave up after 4m`},
		{after: 480 * time.Second, says: `primary was too slow for the sandbox of testbed/slow\S+: kubelet gave up after 4m`},
	}},
	{name: "shim-stopped", pod: "probed", at: 10 * time.Second, do: func(t *testing.T, n *node) func() {
		shim := n.shim(t, "probed")
		require.NoError(t, unix.Kill(shim, unix.SIGSTOP))
		return func() { assert.NoError(t, unix.Kill(shim, unix.SIGCONT)) }
	}, undo: 150 * time.Second, end: 230 * time.Second, also: `^primary (is|was) slow .*ListContainerStats`, ask: []question{
		{after: 60 * time.Second, says: `testbed/probed\S+: its exec probe .*its shim did not answer`, lasts: true},
		{after: 140 * time.Second, says: `testbed/probed\S+: its exec probe .*its shim did not answer`, lasts: true},
		{after: 220 * time.Second, says: `testbed/probed\S+: its exec probe .*its shim did not answer`},
		{after: 290 * time.Second, says: `testbed/probed\S+: its exec probe .*its shim did not answer`},
	}},
	{name: "crash-loop", pod: "loop", at: 15 * time.Second, do: func(t *testing.T, n *node) func() {
		n.add(t, pod("loop", "exit", "1"))
		return nil
	}, end: 430 * time.Second, ask: []question{{after: 60 * time.Second}, {after: 200 * time.Second}, {after: 420 * time.Second}, {after: 475 * time.Second}}},
	{name: "stubborn", pod: "stubborn", at: 20 * time.Second, do: func(t *testing.T, n *node) func() {
		require.NoError(t, n.kubelet.RemoveManifest("stubborn"))
		return nil
	}, ask: []question{
		{after: 30 * time.Second},
		{after: 75 * time.Second, says: `testbed/stubborn\S+ did not end within its grace period of 1m0s`},
		{after: 200 * time.Second, says: `testbed/stubborn\S+ did not end within its grace period of 1m0s`},
	}},
	{name: "long-grace", pod: "patient", at: 25 * time.Second, do: func(t *testing.T, n *node) func() {
		require.NoError(t, n.kubelet.RemoveManifest("patient"))
		return nil
	}, ask: []question{{after: 35 * time.Second}, {after: 70 * time.Second}}},
	{name: "probe-fails", pod: "ill", at: 30 * time.Second, do: func(t *testing.T, n *node) func() {
		n.add(t, probed(pod("ill", "sleep"), "exit", "1"))
		return nil
	}, end: 110 * time.Second, ask: []question{{after: 60 * time.Second}, {after: 100 * time.Second}, {after: 150 * time.Second}}},
	{name: "disk-full", pod: "bulky", at: 35 * time.Second, do: func(t *testing.T, n *node) func() {
		undo := n.fill(t)
		n.add(t, onSecond(pod("bulky", "sleep"), "testbed/app:2"))
		return undo
	}, undo: 75 * time.Second, end: 270 * time.Second, ask: []question{
		{after: 65 * time.Second, says: `testbed/bulky\S+ (does|did) not start on old.io: .*there is no space left`, lasts: true},
		{after: 260 * time.Second, says: `testbed/bulky\S+ (does|did) not start on old.io: .*there is no space left`},
		{after: 300 * time.Second, says: `testbed/bulky\S+ (does|did) not start on old.io: .*there is no space left`},
	}},
	{name: "runtime-away", pod: "aged", at: 340 * time.Second, do: func(t *testing.T, n *node) func() {
		require.NoError(t, n.second.Kill())
		return func() { assert.NoError(t, n.second.Start(context.WithoutCancel(t.Context()))) }
	}, undo: 180 * time.Second, also: `^old.io (is|was) (gone|restarted)`, ask: []question{
		{after: 45 * time.Second, says: `^old.io is gone since`, lasts: true},
		{after: 150 * time.Second, says: `^old.io is gone since`, lasts: true},
		{after: 215 * time.Second, says: `^old.io was gone once`},
		{after: 400 * time.Second, says: `^old.io was gone once`},
	}},
	{name: "slow-pull", pod: "large", at: 345 * time.Second, do: func(t *testing.T, n *node) func() {
		p := pod("large", "sleep")
		from, flow := n.drips(t, 1500*time.Millisecond)
		p.Spec.Containers[0].Image = from + "/testbed/large:1"
		n.add(t, p)
		return flow
	}, undo: 180 * time.Second, end: 205 * time.Second, ask: []question{
		{after: 50 * time.Second},
		{after: 100 * time.Second, says: `has been pulling \S+/testbed/large:1 for \dm`},
		{after: 200 * time.Second},
	}},
	{name: "pull-hangs", pod: "puller", at: 560 * time.Second, do: func(t *testing.T, n *node) func() {
		p, waiter := pod("puller", "sleep"), pod("waiter", "sleep")
		from, flow := n.drips(t, time.Hour)
		p.Spec.Containers[0].Image, waiter.Spec.Containers[0].Image = from+"/testbed/large:1", registry+"/testbed/other:1"
		n.add(t, p)
		time.AfterFunc(10*time.Second, func() { assert.NoError(t, n.kubelet.AddManifest(waiter)) })
		return flow
	}, undo: 150 * time.Second, end: 210 * time.Second, ask: []question{
		{after: 100 * time.Second, says: `has been pulling \S+/testbed/large:1 .*; kubelet has not asked for \S+/testbed/other:1 since`, lasts: true},
		{after: 105 * time.Second, says: `has been pulling \S+/testbed/large:1 .*; kubelet has not asked for \S+/testbed/other:1 since`, lasts: true, pod: "waiter"},
		{after: 200 * time.Second},
		{after: 205 * time.Second, pod: "waiter"},
		{after: 230 * time.Second},
	}},
}

// kubelet has its own time-outs here, and criproxy its own recorder. Two nodes, with 5 and 30 pods, have faults and their
// twins, several at a time; criproxy why is asked while each lasts, afterwards, long afterwards, and when its pod is deleted.
func TestWhyOnNodesThatNobodyRehearsed(t *testing.T) {
	small, large := newNode(t, setup{direct: true, second: true, recorder: 16 << 20}), newNode(t, setup{direct: true, second: true, recorder: 16 << 20})
	count := &tally{}
	var steps []step
	for _, n := range []*node{small, large} {
		pods := []*corev1.Pod{pod("idle", "sleep"), onSecond(pod("aged", "sleep"), "testbed/app:1"), probed(pod("probed", "sleep"), "sleep", "0s"), graceful(pod("stubborn", "stubborn"), 60), graceful(pod("patient", "farewell", "/bye", "45s", "then", "sleep"), 90)}
		for i := len(pods); n == large && i < 30; i++ {
			pods = append(pods, pod(fmt.Sprintf("extra-%d", i), "sleep"))
		}
		n.start(t, pods...)
		for i, one := range troubles {
			undo := func() {}
			if one.do != nil {
				steps = append(steps, step{one.at, func() {
					n.say("%s", one.name)
					if u := one.do(t, n); u != nil {
						undo = u
					}
				}})
			}
			steps = append(steps, step{one.at + one.undo, func() { undo() }})
			if one.end > 0 {
				steps = append(steps, step{one.at + one.end, func() { assert.NoError(t, n.kubelet.RemoveManifest(one.pod)) }})
			}
			for _, q := range one.ask {
				steps = append(steps, step{one.at + q.after, func() { n.ask(t, &troubles[i], q, count) }})
			}
		}
	}
	follow(steps)
	fmt.Fprintf(os.Stderr, "%d questions: %d found, %d missed, %d with something false, the others rightly silent\n", count.asked, count.found, count.missed, count.wrong)
}

// A tally counts the questions, and of those that why should not be silent about what it found and missed.
type tally struct {
	sync.Mutex
	asked, found, missed, wrong int
}

// ask asks a question about a pod, about another one and about the node.
func (n *node) ask(t *testing.T, one *trouble, q question, count *tally) {
	var all []string // what may be said of the node
	for _, other := range troubles {
		all = append(all, other.may()...)
	}
	who, mine := cmp.Or(q.pod, one.pod), one.may()
	if q.says == "" {
		mine = nil
	}
	if *record != "" {
		file := filepath.Join(*record, fmt.Sprintf("%s-%d-%03.0fs.jsonl.zst", one.name, n.pods, q.after.Seconds()))
		assert.NoError(t, host.Command(t.Context(), n.proxy.Program, "dump", "-admin", n.proxy.Admin(), file).Run())
	}
	for _, about := range []struct {
		pod  string
		says string
		may  []string
	}{{who, q.says, append(alsoOf(who), mine...)}, {"idle", "", alsoOf("idle")}, {"", q.says, append(alsoOf(""), all...)}} {
		found, problem := n.whyPod(t, about.pod)
		what := fmt.Sprintf("%s on %d after %s, about %q", one.name, n.pods, q.after, about.pod)
		if problem != "" {
			n.say("%s: it could not look: %s", what, problem)
		}
		wrong := slices.DeleteFunc(slices.Clone(found), func(f finding) bool {
			return slices.ContainsFunc(about.may, func(s string) bool { return regexp.MustCompile(s).MatchString(f.sentence()) })
		})
		right := slices.ContainsFunc(found, func(f finding) bool {
			return about.says != "" && regexp.MustCompile(about.says).MatchString(f.sentence()) && q.lasts == f.lasts()
		})
		count.Lock()
		count.asked++
		switch {
		case right:
			count.found++
		case about.says != "":
			count.missed++
			t.Errorf("%s: missed %q (lasts: %v) in %v", what, about.says, q.lasts, found)
		}
		if len(wrong) > 0 {
			count.wrong++
			t.Errorf("%s: false: %v", what, wrong)
		}
		count.Unlock()
	}
}

// may returns what may be said because of a trouble.
func (one *trouble) may() (says []string) {
	for _, q := range one.ask {
		if q.says != "" {
			says = append(says, q.says)
		}
	}
	return says
}

// alsoOf returns what may be said of the runtime of a pod or, without one, of all runtimes.
func alsoOf(pod string) (says []string) {
	second := pod == "aged" || pod == "bulky"
	for _, one := range troubles {
		if one.also != "" && (pod == "" || second == strings.HasPrefix(one.also, "^"+old)) {
			says = append(says, one.also)
		}
	}
	return says
}

func (f finding) sentence() string { return f.Text + "; probably: " + f.Cause }

// lasts reports whether a finding makes why fail.
func (f finding) lasts() bool { return !f.Over && f.Level != "note" }

// whyPod runs criproxy why as people do, about a pod or, without one, about the node. If why could not look, problem says so.
func (n *node) whyPod(t *testing.T, pod string) (found []finding, problem string) {
	args := []string{"why", "-o", "json", "-admin", n.proxy.Admin()}
	if pod != "" {
		args = append(args, "testbed/"+pod+"-"+n.kubelet.NodeName)
	}
	cmd := host.Command(t.Context(), n.proxy.Program, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, _ := cmd.Output() // it fails if something is wrong now
	var report struct{ Findings []finding }
	if cmd.ProcessState.ExitCode() > 1 || json.Unmarshal(out, &report) != nil {
		return nil, stderr.String()
	}
	assert.Equal(t, slices.ContainsFunc(report.Findings, finding.lasts), cmd.ProcessState.ExitCode() == 1, "%v", report.Findings)
	return report.Findings, ""
}

// A step is what a test does so long after it has begun.
type step struct {
	at time.Duration
	do func()
}

// follow does one step after the other. If one comes late, all later ones are as much later: the time between two never shrinks.
func follow(steps []step) {
	began := time.Now()
	slices.SortStableFunc(steps, func(a, b step) int { return cmp.Compare(a.at, b.at) })
	for _, s := range steps {
		wait := time.Until(began.Add(s.at))
		time.Sleep(wait)
		began = began.Add(max(0, -wait))
		s.do()
	}
}

// start adds the first pods of a node, and returns when all run.
func (n *node) start(t *testing.T, pods ...*corev1.Pod) {
	t.Helper()
	n.pods = len(pods)
	n.add(t, pods...)
	ctx, stop := context.WithTimeout(t.Context(), 4*time.Minute)
	defer stop()
	for _, p := range pods {
		_, err := n.kubelet.WaitRunning(ctx, p.Name)
		require.NoError(t, err)
	}
}

func (n *node) add(t *testing.T, pods ...*corev1.Pod) {
	t.Helper()
	for _, p := range pods {
		require.NoError(t, n.kubelet.AddManifest(p))
	}
}

// onSecond returns a pod for the second runtime.
func onSecond(p *corev1.Pod, image string) *corev1.Pod {
	p.Annotations["kubernetes.io/target-runtime"] = old
	p.Spec.Containers[0].Image = old + "/" + registry + "/" + image
	return p
}

// probed returns a pod with an exec probe that runs the program app.
func probed(p *corev1.Pod, args ...string) *corev1.Pod {
	p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: append([]string{"app"}, args...)}}}
	return p
}

func graceful(p *corev1.Pod, seconds int64) *corev1.Pod {
	p.Spec.TerminationGracePeriodSeconds = &seconds
	return p
}

// startSecond starts a containerd 1.7 with a small disk of its own, and returns what criproxy's configuration says of it.
func (n *node) startSecond(t *testing.T) (yaml string) {
	t.Helper()
	dir, err := host.TempDir("containerd.sock.ttrpc")
	require.NoError(t, err)
	require.NoError(t, host.ClaimDir(dir))
	root := filepath.Join(dir, "root")
	require.NoError(t, os.Mkdir(root, 0o711))
	require.NoError(t, unix.Mount("tmpfs", root, "tmpfs", 0, "size=64m"))
	n.second = testbed.NewContainerd(t, n.registry, runtimes.Config{Version: "1.7", Dir: dir, Mirrors: n.runtime.Mirrors})
	return "- name: " + old + "\n  address: " + n.second.Socket() + "\n"
}

// fill fills the disk of the second runtime.
func (n *node) fill(t *testing.T) (undo func()) {
	t.Helper()
	file, err := os.Create(filepath.Join(n.second.Dir, "root", "full"))
	require.NoError(t, err)
	defer file.Close()
	for err == nil {
		_, err = file.Write(make([]byte, 1<<10))
	}
	require.True(t, errors.Is(err, unix.ENOSPC), "%v", err)
	return func() { assert.NoError(t, os.Remove(file.Name())) }
}
