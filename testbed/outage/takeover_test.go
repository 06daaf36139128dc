package outage_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/kubelet"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// A takeover is a node whose kubelet uses containerd's own socket, which containerd or criproxy serves.
type takeover struct {
	*node
	program, dir string
	criproxy     host.Process
	pods         []string
	before       map[string][]task
	restarted    map[string]int32
}

// change runs install or uninstall, which change the files.
func (o *takeover) change(t *testing.T, args ...string) {
	t.Helper()
	out, err := host.Command(t.Context(), o.program, append(args, "-containerd-config", filepath.Join(o.one.Dir, "config.toml"), "-config", filepath.Join(o.dir, "config.yaml"))...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// restart does what administrators do then: restart containerd, and start or stop criproxy.
func (o *takeover) restart(t *testing.T, criproxy bool) {
	t.Helper()
	require.NoError(t, o.one.Terminate(t.Context()))
	require.NoError(t, o.criproxy.Terminate(t.Context()))
	if criproxy {
		require.NoError(t, o.criproxy.Start([]string{o.program, "-logtostderr", "-config", filepath.Join(o.dir, "config.yaml")}, os.Environ()))
	}
	require.NoError(t, o.one.Start(t.Context()), "it answers at the path where it did")
	_, runs := o.criproxy.PID()
	require.Equal(t, criproxy, runs)
}

// undisturbed waits for a new view of kubelet, and asserts that the pods are unchanged: the same sandboxes, containers and
// processes, none restarted.
func (o *takeover) undisturbed(t *testing.T, after string) {
	t.Helper()
	since := time.Now()
	o.awaitHealth(t, o.pods...)
	require.Eventually(t, func() bool {
		age, err := o.kubelet.PLEGAge(t.Context())
		return err == nil && age+time.Second < time.Since(since) // it counts in whole seconds
	}, time.Minute, 100*time.Millisecond, "kubelet looks at its pods")
	now := o.tasks(t, o.one)
	for _, pod := range o.pods {
		assert.Equal(t, o.before[pod], now[pod], "%s, after %s", pod, after)
	}
	assert.Equal(t, o.restarted, o.restarts(t), "after %s", after)
	for _, pod := range o.pods {
		// Lists come from memory until criproxy has connected again, up to 3 s after the runtime serves.
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			out, _, err := o.kubelet.Exec(t.Context(), pod, "app", "app", "print", "here")
			require.NoError(c, err)
			assert.Equal(c, "here\n", out)
		}, time.Minute, 100*time.Millisecond)
	}
	o.say("%s changed nothing", after)
}

func TestPodsGoOnThroughATakeoverAndBack(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"1.7", "2.4"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			testbed.Require(t, build.Kubelet)
			program, err := build.Proxy()
			require.NoError(t, err)
			dir, err := os.MkdirTemp("", "take-") // t.TempDir is too long for a socket
			require.NoError(t, err)
			o := &takeover{
				node: &node{lane: "take" + version, began: time.Now(), ctx: t.Context()}, program: program, dir: dir,
				criproxy: host.NewProcess("criproxy", filepath.Join(dir, "criproxy")),
			}
			reg := testbed.NewRegistry(t)
			o.one = testbed.NewContainerd(t, reg, runtimes.Config{Version: version, Mirrors: map[string]string{registry: reg.Addr}})
			o.kubelet = testbed.NewKubelet(t, kubelet.Config{Endpoint: o.one.Endpoint(), ExtraYAML: "crashLoopBackOff: {maxContainerRestartPeriod: 1s}\n"})
			t.Cleanup(func() { // runs first, so that a failed test removes the pods from their runtimes
				if t.Failed() {
					t.Log(o.criproxy.LogTail(40))
				}
				if _, runs := o.criproxy.PID(); runs {
					o.change(t, "uninstall")
					o.restart(t, false)
				}
				os.RemoveAll(dir)
			})
			require.NoError(t, os.WriteFile(filepath.Join(dir, "config.yaml"), fmt.Appendf(nil, "admin: %s/a.sock\nstateDir: %[1]s/state\nhooks: none\nbackends:\n- address: %s\n", dir, o.one.Socket()), 0o600))

			pods := []*corev1.Pod{firstPod(), probedPod(), neverPod()}
			for _, pod := range pods {
				delete(pod.Annotations, targetRuntime)
				o.pods = append(o.pods, pod.Name)
			}
			o.run(t, pods...)
			o.before, o.restarted = o.tasks(t, o.one), o.restarts(t)
			require.ElementsMatch(t, o.pods, slices.Collect(maps.Keys(o.before)))

			o.change(t, "install", "-takeover", o.one.Socket())
			o.undisturbed(t, "install")
			o.restart(t, true)
			o.undisturbed(t, "the takeover")
			o.comeAndGo(t, o.one)
			require.NoError(t, o.one.Kill())
			require.NoError(t, o.one.Start(t.Context()))
			o.undisturbed(t, "a crash of containerd")
			require.NoError(t, o.kubelet.Terminate(t.Context()))
			require.NoError(t, o.kubelet.Start(t.Context()))
			o.undisturbed(t, "a restart of kubelet")
			o.change(t, "uninstall")
			o.restart(t, false)
			o.undisturbed(t, "uninstall")

			o.killOn(t, o.one) // the kubelet still notices changes
			assert.Equal(t, o.before["first"][0].Sandbox, o.running(t, o.one, "first").Sandbox)
			o.comeAndGo(t, o.one)
		})
	}
}
