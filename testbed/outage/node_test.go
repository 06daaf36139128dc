package outage_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	internalapi "k8s.io/cri-api/pkg/apis"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/kubelet"
	"github.com/criproxy/criproxy/testbed/proxy"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

const (
	two      = "two.test"      // the second runtime's name
	registry = "registry.test" // the runtimes' name for the testbed's registry; an address with a port cannot follow two.test/
	image    = registry + "/testbed/app:1"

	targetRuntime = "kubernetes.io/target-runtime"
)

// A node is a real kubelet over criproxy over two real runtimes.
type node struct {
	lane     string
	one, two *runtimes.Containerd
	proxy    *proxy.Proxy
	kubelet  *kubelet.Kubelet
	began    time.Time
	shared   string // a folder that pods may write to
	evented  bool   // the kubelet uses events (evented PLEG)
	ctx      context.Context

	yaml     string           // the configuration of criproxy
	slowness testbed.Slowness // of the runtime in variant.slow

	usually              time.Duration // duration of a container's restart on the healthy runtime
	usualCome, usualGone time.Duration // until a pod there runs, and until it is gone
}

// variant is how a node differs from the usual one.
type variant struct {
	slow        string   // the runtime that can be made slow: first or two
	alone       bool     // criproxy does not have the second runtime yet
	policy      string   // of the second runtime
	flags       []string // of criproxy
	program     string   // criproxy's program; empty for that of this checkout
	kubeletYAML string
}

// first is the name of the first runtime in variant.slow.
const first = "first"

// newNode starts a node, which is removed when the test ends.
func newNode(t *testing.T, lane string, v variant) *node {
	t.Helper()
	n := &node{lane: lane, began: time.Now(), ctx: t.Context(), evented: strings.Contains(v.kubeletYAML, "EventedPLEG: true")}
	n.say("starting two runtimes, criproxy and a kubelet")
	testbed.Require(t, build.Kubelet)
	reg := testbed.NewRegistry(t)
	mirrors := map[string]string{registry: reg.Addr}
	n.one = testbed.NewContainerd(t, reg, runtimes.Config{Version: "1.7", Mirrors: mirrors})
	n.two = testbed.NewContainerd(t, reg, runtimes.Config{Version: "2.4", Mirrors: mirrors})
	firstSocket, secondSocket := n.one.Socket(), n.two.Socket()
	switch v.slow {
	case first:
		firstSocket = testbed.NewRelay(t, firstSocket, n.slowness.Intercept)
	case two:
		secondSocket = testbed.NewRelay(t, secondSocket, n.slowness.Intercept)
	}
	n.yaml = "backends:\n- address: " + firstSocket + "\n"
	second := "- name: " + two + "\n  address: " + secondSocket + "\n"
	if v.policy != "" {
		second += "  policy: " + v.policy + "\n"
	}
	if !v.alone {
		n.yaml += second
	}
	if v.program != "" {
		n.proxy = testbed.NewProxyOf(t, v.program, n.yaml, v.flags...)
	} else {
		n.proxy = testbed.NewProxy(t, n.yaml, v.flags...)
	}
	if v.alone {
		n.yaml += second // from the next reload on
	}
	n.kubelet = testbed.NewKubelet(t, kubelet.Config{
		Endpoint:  n.proxy.Endpoint(),
		ExtraYAML: "crashLoopBackOff: {maxContainerRestartPeriod: 1s}\n" + v.kubeletYAML,
	})
	n.shared = filepath.Join(n.kubelet.Dir, "shared")
	require.NoError(t, os.Mkdir(n.shared, 0o777))
	return n
}

// say prints progress.
func (n *node) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%-8s %4.0fs  %s\n", n.lane, time.Since(n.began).Seconds(), fmt.Sprintf(format, args...))
}

// on puts a pod on the second runtime.
func onTwo(pod *corev1.Pod) *corev1.Pod {
	pod.Annotations[targetRuntime] = two
	return pod
}

// The pods of every node. Those on the second runtime name their image in each possible way.
func plainPod() *corev1.Pod { return onTwo(kubelet.StaticPod("plain", two+"/"+image, "tick")) }

func neverPod() *corev1.Pod {
	pod := onTwo(kubelet.StaticPod("never", image, "tick"))
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	pod.Spec.Containers[0].ImagePullPolicy = corev1.PullAlways
	return pod
}

// probePeriod is the time between two probes, in seconds. Each runs a command in a container, which takes 0.3 s of a
// processor: with ten in a second, four nodes kept two processors busy, and were late in all that they did. Every outage
// is longer than two periods.
const probePeriod = 4

func probedPod() *corev1.Pod {
	pod := onTwo(kubelet.StaticPod("probed", image, "tick"))
	pod.Spec.Containers[0].ImagePullPolicy = corev1.PullIfNotPresent
	probe := corev1.Probe{
		ProbeHandler:     corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"app", "exit", "0"}}},
		PeriodSeconds:    probePeriod,
		TimeoutSeconds:   15, // a busy machine fails no probe
		FailureThreshold: 1,  // a single failure counts
	}
	pod.Spec.Containers[0].LivenessProbe = &probe
	pod.Spec.Containers[0].ReadinessProbe = probe.DeepCopy()
	return pod
}

func firstPod() *corev1.Pod {
	return kubelet.StaticPod("first", image, "print", "hello", "then", "tick")
}

// settledPod returns a pod for the first runtime that a single mistake ends for good.
func settledPod() *corev1.Pod {
	pod := kubelet.StaticPod("settled", image, "tick")
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	pod.Spec.Containers[0].LivenessProbe = &corev1.Probe{
		ProbeHandler:     corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"app", "exit", "0"}}},
		PeriodSeconds:    probePeriod,
		TimeoutSeconds:   15, // a busy machine fails no probe
		FailureThreshold: 1,
	}
	return pod
}

// leavingPod returns a pod that at SIGTERM goes on for a second, and then writes its name into the shared folder.
func (n *node) leavingPod(name string) *corev1.Pod {
	pod := onTwo(kubelet.StaticPod(name, two+"/"+image, "farewell", "/shared/"+name, "1s", "then", "tick"))
	pod.Spec.Volumes = []corev1.Volume{{Name: "shared", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: n.shared}}}}
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "shared", MountPath: "/shared"}}
	return pod
}

// run starts pods, which all tick, and waits until all are ready and do so.
func (n *node) run(t *testing.T, pods ...*corev1.Pod) {
	t.Helper()
	began := time.Now()
	for _, pod := range pods {
		require.NoError(t, n.kubelet.AddManifest(pod))
	}
	for _, pod := range pods {
		_, err := n.kubelet.WaitRunning(t.Context(), pod.Name)
		require.NoError(t, err)
		require.NoError(t, n.kubelet.WaitPrinted(t.Context(), pod.Name, "tick 1", began))
	}
}

// runAll starts the usual pods.
func (n *node) runAll(t *testing.T) {
	t.Helper()
	n.run(t, firstPod(), settledPod(), plainPod(), probedPod(), neverPod())
	n.say("pods on both runtimes are ready")
}

// readyNode starts a node with the usual pods, and measures how fast its first runtime is.
func readyNode(t *testing.T, lane string, v variant) *node {
	t.Helper()
	n := newNode(t, lane, v)
	n.runAll(t)
	n.measure(t, n.one)
	return n
}

// A task is a container as its runtime and the kernel report it.
type task struct {
	Sandbox, Container string // ids
	Attempts           string // of both
	PID                int
	Start              string // of the process: distinguishes processes with the same pid
}

// alive reports whether the process lives. A containerd that was killed just when a container ended names the pid of a
// process that has long gone; it had no start then.
func (x task) alive() bool { return x.Start != "" && host.StartTime(x.PID) == x.Start }

// tasks returns, from the runtime itself, every sandbox and container that has not been removed, by the name of the
// pod. More than one task of a pod means that the pod got another one.
func (n *node) tasks(t *testing.T, rt *runtimes.Containerd) map[string][]task {
	t.Helper()
	client := n.client(t, rt)
	sandboxes, err := client.ListPodSandbox(t.Context(), nil)
	require.NoError(t, err)
	containers, err := client.ListContainers(t.Context(), nil)
	require.NoError(t, err)
	all := map[string][]task{}
	for _, s := range sandboxes {
		name := strings.TrimSuffix(s.GetMetadata().GetName(), "-"+n.kubelet.NodeName)
		found := false
		for _, c := range containers {
			if c.GetPodSandboxId() != s.GetId() {
				continue
			}
			pid, err := runtimes.PIDOf(t.Context(), client, c.GetId())
			if err != nil {
				continue // removed meanwhile
			}
			found = true
			all[name] = append(all[name], task{
				Sandbox: s.GetId(), Container: c.GetId(), PID: pid, Start: host.StartTime(pid),
				Attempts: fmt.Sprintf("%d/%d", s.GetMetadata().GetAttempt(), c.GetMetadata().GetAttempt()),
			})
		}
		if !found {
			all[name] = append(all[name], task{Sandbox: s.GetId()})
		}
	}
	for _, of := range all {
		slices.SortFunc(of, func(a, b task) int { return strings.Compare(a.Sandbox+a.Container, b.Sandbox+b.Container) })
	}
	return all
}

func (n *node) client(t *testing.T, rt *runtimes.Containerd) internalapi.RuntimeService {
	t.Helper()
	client, err := rt.Runtime(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { client.Close(t.Context()) })
	return client
}

// running returns the only running task of a pod.
func (n *node) running(t *testing.T, rt *runtimes.Containerd, pod string) task {
	t.Helper()
	for _, x := range n.tasks(t, rt)[pod] {
		if x.alive() {
			return x
		}
	}
	t.Fatalf("pod %s has no running container on %s: %+v", pod, rt.Name, n.tasks(t, rt)[pod])
	return task{}
}

// restarts returns how often the containers of each pod have been restarted, in the kubelet's view.
func (n *node) restarts(t *testing.T) map[string]int32 {
	t.Helper()
	pods, err := n.kubelet.Pods(t.Context())
	require.NoError(t, err)
	all := map[string]int32{}
	for _, pod := range pods {
		for _, c := range pod.Status.ContainerStatuses {
			all[n.short(pod.ObjectMeta)] += c.RestartCount
		}
	}
	return all
}

func (n *node) short(pod metav1.ObjectMeta) string {
	return strings.TrimSuffix(pod.Name, "-"+n.kubelet.NodeName)
}

// killOn kills the container of a pod that exists for this purpose, and returns the time until it runs again.
func (n *node) killOn(t *testing.T, rt *runtimes.Containerd) time.Duration {
	t.Helper()
	pod := map[*runtimes.Containerd]string{n.one: "first", n.two: "plain"}[rt]
	before, err := n.kubelet.WaitRunning(t.Context(), pod)
	require.NoError(t, err)
	count := before.Status.ContainerStatuses[0].RestartCount
	began := time.Now()
	kill(t, n.running(t, rt, pod))
	_, err = n.kubelet.WaitRestarted(t.Context(), pod, count+1)
	require.NoError(t, err)
	return time.Since(began)
}

// comeAndGo adds and removes a pod on a runtime and returns how long each takes. The pod is gone when its process is.
func (n *node) comeAndGo(t *testing.T, rt *runtimes.Containerd) (come, gone time.Duration) {
	t.Helper()
	guest := kubelet.StaticPod("guest", image, "tick")
	if rt == n.two {
		onTwo(guest)
	}
	began := time.Now()
	n.run(t, guest)
	come = time.Since(began)
	x := n.running(t, rt, "guest")
	began = time.Now()
	n.remove(t, "guest")
	awaitEnd(t, x)
	return come, time.Since(began)
}

// remove removes a pod. A static pod vanishes from the kubelet's list at once; its processes end later.
func (n *node) remove(t *testing.T, name string) {
	t.Helper()
	require.NoError(t, n.kubelet.RemoveManifest(name))
	require.NoError(t, n.kubelet.WaitGone(t.Context(), name))
}

// awaitEnd waits until a process has ended.
func awaitEnd(t *testing.T, x task) {
	t.Helper()
	require.Eventually(t, func() bool { return !x.alive() }, time.Minute, 20*time.Millisecond, "process %d ends", x.PID)
}

// mark is a place in the logs.
type mark struct{ proxy, kubelet int64 }

func (n *node) mark(t *testing.T) mark {
	t.Helper()
	var m mark
	var err error
	_, m.proxy, err = n.proxy.LogLines(0)
	require.NoError(t, err)
	_, m.kubelet, err = n.kubelet.LogLines(0)
	require.NoError(t, err)
	return m
}

// kubeletSaid returns the lines of the kubelet's log after m that contain all words.
func (n *node) kubeletSaid(t *testing.T, m mark, words ...string) []string {
	t.Helper()
	lines, _, err := n.kubelet.LogLines(m.kubelet, words...)
	require.NoError(t, err)
	return lines
}

// awaitProxy waits until criproxy has logged a line after m that contains all words.
func (n *node) awaitProxy(t *testing.T, m mark, within time.Duration, words ...string) {
	t.Helper()
	require.Eventually(t, func() bool {
		lines, _, err := n.proxy.LogLines(m.proxy, words...)
		return err == nil && len(lines) > 0
	}, within, 20*time.Millisecond, "criproxy says %q", words)
}

// twoSaid returns the lines of the second runtime's log, from offset on, that contain all words, and the log's end.
func (n *node) twoSaid(offset int64, words ...string) (lines []string, end int64, err error) {
	return n.two.LogLines(offset, words...)
}

// awaitHealth waits until each pod is ready and the kubelet's view is fresh.
func (n *node) awaitHealth(t *testing.T, pods ...string) {
	t.Helper()
	for _, pod := range pods {
		_, err := n.kubelet.WaitRunning(t.Context(), pod)
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool {
		age, err := n.kubelet.PLEGAge(t.Context())
		return err == nil && age < maxPLEGAge
	}, time.Minute, 100*time.Millisecond, "the kubelet sees all pods again")
}

// changes counts the pods whose tasks differ between two views in the part that of returns.
func changes(before, after map[string][]task, of func(task) string) int {
	set := func(all []task) map[string]bool {
		parts := map[string]bool{}
		for _, x := range all {
			parts[of(x)] = true
		}
		return parts
	}
	n := 0
	for pod := range before {
		if !maps.Equal(set(before[pod]), set(after[pod])) {
			n++
		}
	}
	return n
}
