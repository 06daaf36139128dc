package outage_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/criproxy/criproxy/testbed/kubelet"
)

// lists are the methods that a late runtime answers late: each list, status and statistic.
var lists = []string{"List*", "*Status", "*Stats", "ImageFsInfo"}

// late returns an outage with a slow runtime. It is long enough for the kubelet to do everything that it does once a
// minute, such as removing dead containers. With -long it lasts longer, to show that nothing degrades. The kubelet's view
// may be older by two late answers.
func late(by time.Duration, o outage) outage {
	o.kind, o.by, o.length, o.harmless = 'L', by, span(65, 240), true
	o.age = max(o.age, maxPLEGAge+2*by)
	return o
}

// With a disk under load, many pods, or a virtual machine in each pod, a runtime is always late, but works.
func TestALateRuntimeHarmsNoPodAndSlowsNoOther(t *testing.T) {
	t.Parallel()
	n := readyNode(t, "late", variant{slow: two})
	n.suffer(t, late(2500*time.Millisecond, outage{}))
	n.suffer(t, late(6*time.Second, outage{}))
}

// Pods of a late runtime come and go later, but they do. Memory cannot answer where the kubelet must not see an old state,
// such as that of a pod that it has just created: the kubelet waits for two lists and for two statuses, one after the
// other, and so do the pods of the other runtime, as they would without criproxy.
func TestALateRuntimeRunsPods(t *testing.T) {
	t.Parallel()
	const by = 2500 * time.Millisecond
	n := newNode(t, "patient", variant{slow: two})
	n.runAll(t)
	n.measure(t, n.two)
	o := late(by, outage{also: "pods on it", quiet: true, age: 8 * by})
	o.length = span(20, 60)
	o.during = func(t *testing.T) {
		come, gone := n.comeAndGo(t, n.two)
		n.say("on the late runtime a pod comes after %s and goes after %s", seconds(come), seconds(gone))
		assert.Less(t, come, 12*by+3*n.usualCome, "as many late answers as a pod needs, and what it takes on a busy machine")
		assert.Less(t, gone, 12*by+3*n.usualGone)
		short := onTwo(kubelet.StaticPod("short", image, "print", "done"))
		short.Spec.RestartPolicy = corev1.RestartPolicyNever
		require.NoError(t, n.kubelet.AddManifest(short))
		_, err := n.kubelet.WaitPod(t.Context(), "short", "to succeed", func(pod *corev1.Pod) bool {
			return pod != nil && pod.Status.Phase == corev1.PodSucceeded
		})
		require.NoError(t, err)
		n.remove(t, "short")
		n.say("one that ends by itself has done so")
	}
	n.suffer(t, o)
}

func TestALatePrimaryHarmsNoPodAndSlowsNoOther(t *testing.T) {
	t.Parallel()
	n := newNode(t, "primary2", variant{slow: first})
	n.runAll(t)
	n.measure(t, n.two)
	n.suffer(t, late(2500*time.Millisecond, outage{first: true}))
	n.suffer(t, late(6*time.Second, outage{first: true}))
}

// criproxy has no memory of a primary that was its only runtime. If the primary is late just when a second runtime is
// added, no list may lack its pods.
func TestARuntimeIsAddedWhileThePrimaryIsLate(t *testing.T) {
	t.Parallel()
	n := newNode(t, "added", variant{slow: first, alone: true})
	n.run(t, firstPod(), settledPod())
	const by = 2500 * time.Millisecond
	n.slowness.Set(by, lists...)
	n.awaitRelists(t, 2) // the kubelet has got late lists
	o := late(by, outage{also: "the primary, another one added", first: true, quiet: true, unseen: true})
	o.length = span(30, 120)
	o.age = 12 * by // the view was that old before: memory does not answer for a single runtime
	o.during = func(t *testing.T) {
		n.reload(t, "")
		began := time.Now()
		n.run(t, plainPod(), probedPod(), neverPod())
		n.say("pods on the runtime that was added are ready after %s", seconds(time.Since(began)))
	}
	n.suffer(t, o)
	n.running(t, n.two, "never")
}
