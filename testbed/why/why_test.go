package why_test

import (
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// Each fault is made on a real node. criproxy why must name it.
func TestWhyNamesTheFault(t *testing.T) {
	n := newNode(t, "listBudget: 40s\ngoneAfter: 60s\n", "runtimeRequestTimeout: 4s\ncrashLoopBackOff: {maxContainerRestartPeriod: 1s}\n")
	bin := testbed.Require(t, append(build.ForContainers(), build.Kubelet)...)
	n.run(t, pod("web", "tick"), pod("idle"))
	time.Sleep(3 * time.Second)
	n.save(t, "healthy")
	assert.Empty(t, n.why(t, n.began), "nothing is wrong yet")
	cases := []struct {
		name string
		says string // by why; empty if it says nothing
		run  func()
	}{
		{"pleg-status", "ContainerStatus hangs on primary for testbed/web-", func() {
			n.relay.Set(15*time.Second, "ContainerStatus")
			n.killPod(t, "web")
			time.Sleep(20 * time.Second)
			n.relay.Set(0)
			time.Sleep(8 * time.Second)
		}},
		{"pleg-list", "ListContainers hangs on primary", func() {
			n.relay.Set(15*time.Second, "ListContainers")
			time.Sleep(25 * time.Second)
			n.relay.Set(0)
			time.Sleep(8 * time.Second)
		}},
		{"sandbox-reserved", "primary is too slow for the sandbox of testbed/slow-", func() {
			undo := n.onCNI(t, "ADD", "slow", "sleep 25")
			require.NoError(t, n.kubelet.AddManifest(pod("slow", "tick")))
			time.Sleep(20 * time.Second)
			undo()
			time.Sleep(3 * time.Second)
		}},
		{"stubborn", "did not end within its grace period of 7s", func() {
			p := pod("stubborn", "stubborn")
			g := int64(7)
			p.Spec.TerminationGracePeriodSeconds = &g
			n.run(t, p)
			require.NoError(t, n.kubelet.RemoveManifest("stubborn"))
			time.Sleep(10 * time.Second)
		}},
		{"shim-stopped", "cannot end on primary: its shim does not answer", func() {
			n.run(t, pod("frozen", "tick"))
			shim := n.shim(t, "frozen")
			require.NoError(t, unix.Kill(shim, unix.SIGSTOP))
			require.NoError(t, n.kubelet.RemoveManifest("frozen"))
			time.Sleep(25 * time.Second)
			require.NoError(t, unix.Kill(shim, unix.SIGCONT))
			time.Sleep(5 * time.Second)
		}},
		{"shim-gone", "", func() {
			n.run(t, pod("lost", "tick"))
			require.NoError(t, unix.Kill(n.shim(t, "lost"), unix.SIGKILL))
			time.Sleep(5 * time.Second)
			require.NoError(t, n.kubelet.RemoveManifest("lost"))
			time.Sleep(12 * time.Second)
		}},
		{"cni-del", "cannot end on primary: its CNI plugin fails to remove the network", func() {
			n.run(t, pod("wired", "tick"))
			undo := n.onCNI(t, "DEL", "wired", `echo '{"cniVersion":"1.0.0","code":11,"msg":"the address manager does not answer"}'; exit 1`)
			require.NoError(t, n.kubelet.RemoveManifest("wired"))
			time.Sleep(20 * time.Second)
			undo()
			time.Sleep(5 * time.Second)
		}},
		{"probe", "took longer than its time-out of 1s", func() {
			p := pod("probed", "tick")
			p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{
				ProbeHandler:  corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"app", "sleep", "3s"}}},
				PeriodSeconds: 2, TimeoutSeconds: 1,
			}
			require.NoError(t, n.kubelet.AddManifest(p))
			time.Sleep(15 * time.Second)
			require.NoError(t, n.kubelet.RemoveManifest("probed"))
			time.Sleep(3 * time.Second)
		}},
		{"flood", "crictl made ", func() {
			for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
				_ = exec.Command(bin.Crictl, "--runtime-endpoint", n.proxy.Endpoint(), "ps", "-a").Run()
			}
		}},
		{"kubelet-gap", "kubelet made no call for ", func() {
			time.Sleep(20 * time.Second) // so that why knows kubelet's rhythm
			require.NoError(t, n.kubelet.Freeze())
			time.Sleep(15 * time.Second)
			require.NoError(t, n.kubelet.Thaw())
			time.Sleep(5 * time.Second)
		}},
		{"pull-hangs", "it pulls one image at a time", func() {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			go func() {
				for {
					if _, err := l.Accept(); err != nil {
						return
					}
				}
			}()
			one, other := pod("puller", "tick"), pod("waiter", "tick")
			one.Spec.Containers[0].Image = l.Addr().String() + "/team/app:1"
			require.NoError(t, n.kubelet.AddManifest(one))
			time.Sleep(4 * time.Second)
			other.Spec.Containers[0].Image = registry + "/testbed/app:2"
			require.NoError(t, n.kubelet.AddManifest(other))
			time.Sleep(12 * time.Second)
			t.Cleanup(func() { l.Close() }) // this ends the pull
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			since := time.Now()
			n.say("%s", c.name)
			c.run()
			n.save(t, c.name)
			found := n.why(t, since)
			assert.True(t, c.says == "" || slices.ContainsFunc(found, func(f finding) bool { return strings.Contains(f.Text, c.says) }), "%q is not in %v", c.says, found)
		})
	}
}

// shim returns the process of a pod's shim.
func (n *node) shim(t *testing.T, name string) int {
	t.Helper()
	client, err := n.runtime.Runtime(t.Context())
	require.NoError(t, err)
	defer client.Close(t.Context())
	all, err := client.ListPodSandbox(t.Context(), nil)
	require.NoError(t, err)
	for _, p := range all {
		if strings.HasPrefix(p.Metadata.Name, name+"-") {
			out, err := exec.Command("pgrep", "-f", "containerd-shim-runc-v2.*-id "+p.Id).Output()
			require.NoError(t, err)
			var pid int
			_, err = fmt.Sscan(strings.Fields(string(out))[0], &pid)
			require.NoError(t, err)
			return pid
		}
	}
	t.Fatalf("no sandbox of %s", name)
	return 0
}

// killPod kills the process of a pod's container.
func (n *node) killPod(t *testing.T, name string) {
	t.Helper()
	client, err := n.runtime.Runtime(t.Context())
	require.NoError(t, err)
	defer client.Close(t.Context())
	all, err := client.ListContainers(t.Context(), nil)
	require.NoError(t, err)
	for _, c := range all {
		if strings.HasPrefix(c.Labels["io.kubernetes.pod.name"], name+"-") {
			if pid, err := runtimes.PIDOf(t.Context(), client, c.Id); err == nil && pid > 0 {
				require.NoError(t, unix.Kill(pid, unix.SIGKILL))
			}
		}
	}
}
