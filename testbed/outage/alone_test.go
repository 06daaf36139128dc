package outage_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/testbed/host"
)

func TestATaskWhoseProcessHasGoneDoesNotLive(t *testing.T) {
	assert.False(t, task{PID: math.MaxInt32}.alive())
}

func TestAKubeletRunsStaticPodsOnBothRuntimes(t *testing.T) {
	t.Parallel()
	n := newNode(t, "alone", variant{})
	n.runAll(t)
	n.standAlone(t)
	n.sandboxGone(t, "leaving")
}

// standAlone tests a kubelet's ordinary work while both runtimes are healthy.
func (n *node) standAlone(t *testing.T) {
	t.Helper()
	started := n.mark(t)
	for pod, rt := range map[string]string{"first": "one", "plain": "two", "probed": "two", "never": "two"} {
		on, off := n.one, n.two
		if rt == "two" {
			on, off = off, on
		}
		n.running(t, on, pod)
		assert.Empty(t, n.tasks(t, off)[pod], "pod %s is on one runtime only", pod)

		out, code, err := n.kubelet.Exec(t.Context(), pod, "app", "app", "file", "/etc/image")
		if assert.NoError(t, err) {
			assert.Equal(t, "testbed/app:1\n", out)
			assert.Zero(t, code)
		}
		_, code, err = n.kubelet.Exec(t.Context(), pod, "app", "app", "exit", "7")
		if assert.NoError(t, err) {
			assert.Equal(t, 7, code)
		}
		log, err := n.kubelet.ContainerLog(t.Context(), pod, "app")
		if assert.NoError(t, err) {
			assert.Contains(t, log, "tick 1\n")
		}
	}

	// A killed container is restarted, in the same sandbox.
	before := n.running(t, n.two, "plain")
	kill(t, before)
	plain, err := n.kubelet.WaitRestarted(t.Context(), "plain", 1)
	require.NoError(t, err)
	assert.EqualValues(t, 1, plain.Status.ContainerStatuses[0].RestartCount)
	after := n.running(t, n.two, "plain")
	assert.Equal(t, before.Sandbox, after.Sandbox)
	assert.NotEqual(t, before.Container, after.Container)
	n.killOn(t, n.one)

	// The kubelet removes a pod whose manifest is removed.
	n.run(t, n.leavingPod("leaving"))
	gone := n.running(t, n.two, "leaving")
	n.remove(t, "leaving")
	awaitEnd(t, gone)
	assert.FileExists(t, n.shared+"/leaving", "it had its time")

	assert.Empty(t, n.kubeletSaid(t, started, "Skipping pod synchronization"), "the node is ready all the time")
	n.say("restarts, exec, logs and removal work on both runtimes")
}

// sandboxGone waits until the second runtime has nothing left of a pod, which takes the kubelet up to a minute.
func (n *node) sandboxGone(t *testing.T, pod string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	require.NoError(t, host.Poll(ctx, "the sandbox of "+pod+" to be removed", func() bool { return len(n.tasks(t, n.two)[pod]) == 0 }))
}
