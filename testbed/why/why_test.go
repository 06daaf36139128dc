package why_test

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/criproxy/criproxy/internal/testing/testkit"
	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// Each fault is made on a real node. criproxy why must name it.
func TestWhyNamesTheFault(t *testing.T) {
	n := newNode(t, setup{criproxy: "listBudget: 40s\ngoneAfter: 60s\n", kubelet: "runtimeRequestTimeout: 4s\ncrashLoopBackOff: {maxContainerRestartPeriod: 1s}\n"})
	bin := testbed.Require(t, append(build.ForContainers(), build.Kubelet)...)
	n.run(t, pod("web", "tick"), pod("idle"))
	time.Sleep(3 * time.Second)
	n.save(t, "healthy", n.began)
	assert.Empty(t, n.why(t, n.began), "nothing is wrong yet")
	n.try(t, []fault{
		{name: "pleg-status", says: " in ContainerStatus for testbed/", run: func(t *testing.T) {
			n.relay.Set(15*time.Second, "ContainerStatus")
			n.killPod(t, "web")
			time.Sleep(20 * time.Second)
			n.relay.Set(0)
			time.Sleep(8 * time.Second)
		}},
		{name: "pleg-list", says: " in ListContainers: it took up to ", run: func(t *testing.T) {
			n.relay.Set(15*time.Second, "ListContainers")
			time.Sleep(25 * time.Second)
			n.relay.Set(0)
			time.Sleep(8 * time.Second)
		}},
		{name: "sandbox-reserved", says: " too slow for the sandbox of testbed/slow-", run: func(t *testing.T) {
			undo := n.onCNI(t, "ADD", "slow", "sleep 40")
			require.NoError(t, n.kubelet.AddManifest(pod("slow", "tick")))
			time.Sleep(33 * time.Second)
			undo()
			time.Sleep(3 * time.Second)
		}},
		{name: "stubborn", says: "did not end within its grace period of 7s", run: func(t *testing.T) {
			p := pod("stubborn", "stubborn")
			g := int64(7)
			p.Spec.TerminationGracePeriodSeconds = &g
			n.run(t, p)
			require.NoError(t, n.kubelet.RemoveManifest("stubborn"))
			time.Sleep(10 * time.Second)
		}},
		{name: "shim-stopped", says: "its shim did not answer", run: func(t *testing.T) {
			n.run(t, pod("frozen", "tick"))
			shim := n.shim(t, "frozen")
			require.NoError(t, unix.Kill(shim, unix.SIGSTOP))
			require.NoError(t, n.kubelet.RemoveManifest("frozen"))
			time.Sleep(25 * time.Second)
			require.NoError(t, unix.Kill(shim, unix.SIGCONT))
			time.Sleep(5 * time.Second)
		}},
		{name: "shim-gone", says: " had ended by ", run: func(t *testing.T) {
			n.run(t, pod("lost", "tick"))
			require.NoError(t, unix.Kill(n.shim(t, "lost"), unix.SIGKILL))
			time.Sleep(5 * time.Second)
			require.NoError(t, n.kubelet.RemoveManifest("lost"))
			time.Sleep(12 * time.Second)
		}},
		{name: "stopped-by-crictl", says: "crictl, not kubelet, stopped ", run: func(t *testing.T) {
			n.run(t, pod("swept", "tick"))
			require.NoError(t, host.Command(t.Context(), bin.Crictl, "--runtime-endpoint", n.proxy.Endpoint(), "stopp", n.sandbox(t, "swept")).Run())
			time.Sleep(20 * time.Second)
		}},
		{name: "cni-del", says: " end on primary: its CNI plugin fails to remove the network", run: func(t *testing.T) {
			n.run(t, pod("wired", "tick"))
			undo := n.onCNI(t, "DEL", "wired", `echo '{"cniVersion":"1.0.0","code":11,"msg":"the address manager does not answer"}'; exit 1`)
			require.NoError(t, n.kubelet.RemoveManifest("wired"))
			time.Sleep(20 * time.Second)
			undo()
			time.Sleep(5 * time.Second)
		}},
		{name: "probe", says: "took longer than its time-out of 1s", run: func(t *testing.T) {
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
		{name: "flood", says: "crictl made ", run: func(t *testing.T) {
			for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
				_ = host.Command(t.Context(), bin.Crictl, "--runtime-endpoint", n.proxy.Endpoint(), "ps", "-a").Run()
			}
		}},
		{name: "kubelet-gap", says: "kubelet made no call for ", run: func(t *testing.T) {
			time.Sleep(20 * time.Second) // so that why knows kubelet's rhythm
			require.NoError(t, n.kubelet.Freeze())
			time.Sleep(15 * time.Second)
			require.NoError(t, n.kubelet.Thaw())
			time.Sleep(5 * time.Second)
		}},
		{name: "pull-hangs", says: "kubelet pulls one image at a time", run: func(t *testing.T) {
			one, other := pod("puller", "tick"), pod("waiter", "tick")
			one.Spec.Containers[0].Image = n.stalls(t) + "/testbed/large:1"
			require.NoError(t, n.kubelet.AddManifest(one))
			n.awaitSandbox(t, "puller") // on a busy machine this alone takes seconds
			time.Sleep(4 * time.Second)
			other.Spec.Containers[0].Image = registry + "/testbed/app:2"
			require.NoError(t, n.kubelet.AddManifest(other))
			n.awaitSandbox(t, "waiter")
			time.Sleep(65 * time.Second)
		}},
	})
}

// sandbox returns the id of a pod's sandbox.
func (n *node) sandbox(t *testing.T, pod string) string {
	t.Helper()
	id := n.findSandbox(t, pod)
	require.NotEmpty(t, id, "no sandbox of %s", pod)
	return id
}

// awaitSandbox waits until a pod has a sandbox.
func (n *node) awaitSandbox(t *testing.T, pod string) {
	t.Helper()
	testkit.Eventually(t, pod+" has a sandbox", func() bool { return n.findSandbox(t, pod) != "" })
}

// findSandbox returns the id of a pod's sandbox, if there is one.
func (n *node) findSandbox(t *testing.T, pod string) string {
	t.Helper()
	client, err := n.runtime.Runtime(t.Context())
	require.NoError(t, err)
	defer client.Close(t.Context())
	all, err := client.ListPodSandbox(t.Context(), nil)
	require.NoError(t, err)
	for _, p := range all {
		if strings.HasPrefix(p.Metadata.Name, pod+"-") {
			return p.Id
		}
	}
	return ""
}

// shim returns the process of a pod's shim.
func (n *node) shim(t *testing.T, name string) int {
	t.Helper()
	pid, err := shimOf(t.Context(), n.sandbox(t, name))
	require.NoError(t, err)
	return pid
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

// stalls returns the address of a registry with a large image, of which it sends 16 KiB and then nothing more until the test ends.
func (n *node) stalls(t *testing.T) (address string) {
	layer, err := random.Layer(3<<19, types.DockerLayer)
	require.NoError(t, err)
	image, err := mutate.AppendLayers(n.pushed(t, "testbed/app:1"), layer)
	require.NoError(t, err)
	require.NoError(t, n.registry.Push("testbed/large:1", image))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer client.Close()
				server, err := net.Dial("tcp", n.registry.Addr)
				if err != nil {
					return
				}
				defer server.Close()
				go func() { _, _ = io.Copy(server, client) }() // it ends with either
				_, _ = io.CopyN(client, server, 16<<10)
				<-t.Context().Done()
			}()
		}
	}()
	return l.Addr().String()
}
