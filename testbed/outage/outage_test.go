// Package outage tests what happens to pods when one of two runtimes goes away or is slow, with a real kubelet, criproxy
// and real runtimes. It has only tests.
//
//	cd outage && go test           progress, and a table at the end
//	cd outage && go test -long -timeout 60m
//	                               longer outages, of up to 240 s, and most of them twice
//
// Each test is a lane with its own kubelet, criproxy and two containerds. Several lanes run at once, because they
// mostly wait.
package outage_test

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/kubelet"
)

var long = flag.Bool("long", false, "longer outages, and more of them")

// maxPLEGAge bounds the age of the kubelet's view of the pods in an outage. A node is not ready at three minutes. If an
// outage stops relists, the view is older than the shortest outage, 10 s, plus the time that a runtime may take for a
// list.
const maxPLEGAge = 10 * time.Second

func TestMain(m *testing.M) {
	flag.Parse()
	atOnce := false
	flag.Visit(func(f *flag.Flag) { atOnce = atOnce || f.Name == "test.parallel" })
	if !atOnce {
		flag.Set("test.parallel", "4")
	}
	klog.SetLogger(klog.Logger{}) // silence: containers may vanish during calls about them
	testbed.Limit = 14 * time.Minute
	testbed.Main(reporting{m}, slices.Concat(build.ForContainers(), []string{build.Kubelet}, dockers())...)
}

// seconds of an outage, or with -long more.
func span(usual, longer int) time.Duration {
	if *long {
		usual = longer
	}
	return time.Duration(usual) * time.Second
}

// repeat returns the number of rounds of outages.
func repeat() int {
	if *long {
		return 2
	}
	return 1
}

func TestAnOutageHarmsNoPodAndSlowsNoOther(t *testing.T) {
	t.Parallel()
	n := readyNode(t, "default", variant{})
	for range repeat() {
		n.suffer(t, outage{kind: 'K', length: span(20, 90), harmless: true})
		n.suffer(t, outage{kind: 'S', length: span(4, 4), harmless: true})
		n.suffer(t, outage{kind: 'S', length: span(20, 90), harmless: true})
		n.suffer(t, outage{kind: 'R', harmless: true})
	}
}

// The kubelet waits for an ExecSync for two minutes plus the probe's timeout, and then counts a failed probe. A runtime
// that hangs for longer must not cause one.
func TestALongHangFailsNoProbe(t *testing.T) {
	t.Parallel()
	if !*long {
		t.Skip("left out: a hang has to last for more than two minutes (-long -timeout 60m)")
	}
	n := readyNode(t, "hang", variant{})
	n.suffer(t, outage{kind: 'S', length: 150 * time.Second, harmless: true})
}

func TestADeletionWaitsForTheRuntimeAndIsDoneProperly(t *testing.T) {
	t.Parallel()
	n := readyNode(t, "delete", variant{})
	for i := range repeat() {
		for _, kind := range []byte{'K', 'S'} {
			name := fmt.Sprintf("leaving-%c%d", kind+'a'-'A', i)
			late := fmt.Sprintf("late-%c%d", kind+'a'-'A', i)
			n.run(t, n.leavingPod(name))
			leaving := n.running(t, n.two, name)
			_, said, err := n.twoSaid(0)
			require.NoError(t, err)
			n.suffer(t, outage{
				kind: kind, length: span(15, 60), also: "a pod deleted, one added", harmless: true,
				during: func(t *testing.T) {
					require.NoError(t, n.kubelet.RemoveManifest(name))
					require.NoError(t, n.kubelet.AddManifest(onTwo(kubelet.StaticPod(late, two+"/"+image, "tick"))))
				},
				back: func(t *testing.T) {
					awaitEnd(t, leaving)
					assert.FileExists(t, n.shared+"/"+name, "it had its time to take its leave")
					stops, _, err := n.twoSaid(said, "Stop container", leaving.Container, "with signal terminated")
					require.NoError(t, err)
					assert.NotEmpty(t, stops, "the runtime got the call to stop it")
					// The kubelet removes the container before the test can read its exit code.
					require.Eventually(t, func() bool {
						ends, _, err := n.twoSaid(said, "exit event", leaving.Container)
						return err == nil && len(ends) > 0 && !strings.Contains(ends[0], "exit_status")
					}, 20*time.Second, 20*time.Millisecond, "it ended by itself, with exit code 0")
					_, err = n.kubelet.WaitRunning(t.Context(), late)
					assert.NoError(t, err)
				},
				before: func(t *testing.T) {
					assert.True(t, leaving.alive(), "what cannot be stopped is not killed")
					assert.NoFileExists(t, n.shared+"/"+name)
				},
			})
			n.remove(t, late)
		}
	}
	n.sandboxGone(t, "leaving-k0")
}

func TestRestartsInAnOutageChangeNothing(t *testing.T) {
	t.Parallel()
	n := readyNode(t, "restart", variant{})
	restartKubelet := func(t *testing.T) {
		require.NoError(t, n.kubelet.Terminate(t.Context()))
		require.NoError(t, n.kubelet.Start(t.Context()))
	}
	restartProxy := func(t *testing.T) {
		require.NoError(t, n.proxy.Kill())
		require.NoError(t, n.proxy.Start(t.Context()))
	}
	for range repeat() {
		for _, kind := range []byte{'K', 'S'} {
			n.suffer(t, outage{kind: kind, length: span(10, 30), also: "kubelet restarted", anew: true, harmless: true, during: restartKubelet})
			// criproxy takes up to 4 s to drain hanging calls when it stops; then kubelet reconnects, after a pause.
			n.suffer(t, outage{kind: kind, length: span(10, 30), also: "criproxy restarted", harmless: true, age: maxPLEGAge + 7*time.Second, during: restartProxy})
			n.suffer(t, outage{kind: kind, length: span(10, 30), also: "both restarted", anew: true, harmless: true, during: func(t *testing.T) {
				require.NoError(t, n.kubelet.Kill())
				restartProxy(t)
				require.NoError(t, n.kubelet.Start(t.Context()))
			}})
		}
	}
}

// criproxy behaved like this before it had a memory, and does so with policy: skip.
func TestSkippingARuntimeKillsItsPods(t *testing.T) {
	t.Parallel()
	n := readyNode(t, "skip", variant{policy: "skip"})
	never := n.running(t, n.two, "never")
	r := n.suffer(t, outage{kind: 'S', length: span(4, 4), also: "policy skip"})
	failed, err := n.kubelet.WaitPod(t.Context(), "never", "to fail", func(pod *corev1.Pod) bool {
		return pod != nil && pod.Status.Phase == corev1.PodFailed
	})
	require.NoError(t, err)
	assert.Equal(t, int32(137), failed.Status.ContainerStatuses[0].State.Terminated.ExitCode)
	awaitEnd(t, never) // the runtime, which is long back, was not asked to stop it
	assert.Positive(t, r.restarts, "nor were the other pods to be restarted")
}

// Without the primary there is no Version and no Status: the kubelet considers the node not ready, which is right.
func TestWithoutThePrimaryNothingIsKilled(t *testing.T) {
	t.Parallel()
	n := readyNode(t, "primary", variant{})
	for range repeat() {
		for _, kind := range []byte{'K', 'S'} {
			at := n.mark(t)
			n.suffer(t, outage{kind: kind, length: span(15, 60), also: "the primary", first: true, quiet: true, harmless: true})
			t.Log(n.kubeletSaid(t, at, "Skipping pod synchronization"))
		}
	}
	n.killOn(t, n.one)
}

func TestNativeIDsChangeNothing(t *testing.T) {
	t.Parallel()
	readyNode(t, "native", variant{flags: []string{"-ids", "native"}}).worksThroughOutages(t)
}

// Features that future kubelets may use by default.
func TestEventsAndStreamedListsChangeNothing(t *testing.T) {
	t.Parallel()
	readyNode(t, "gates", variant{kubeletYAML: "featureGates: {EventedPLEG: true, CRIListStreaming: true}\n"}).worksThroughOutages(t)
}

func (n *node) worksThroughOutages(t *testing.T) {
	t.Helper()
	n.standAlone(t)
	for range repeat() {
		n.suffer(t, outage{kind: 'K', length: span(20, 90), harmless: true})
		n.suffer(t, outage{kind: 'S', length: span(20, 90), harmless: true})
	}
	n.sandboxGone(t, "leaving")
}

// kill kills a process.
func kill(t *testing.T, x task) {
	t.Helper()
	require.NoError(t, unix.Kill(x.PID, unix.SIGKILL))
}
