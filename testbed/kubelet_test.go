package testbed_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/kubelet"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// startKubelet starts a kubelet right on a containerd.
func startKubelet(t *testing.T, version string) (*kubelet.Kubelet, *bench) {
	t.Helper()
	testbed.Require(t, build.Kubelet) // first, before anything is started in vain
	b := start(t, runtimes.Config{Version: version})
	k := testbed.NewKubelet(t, kubelet.Config{
		Endpoint: b.Endpoint(), ExtraYAML: "crashLoopBackOff: {maxContainerRestartPeriod: 1s}",
	})
	return k, b
}

// withMemory gives a pod a volume that the kubelet mounts, at /memory.
func withMemory(pod *corev1.Pod) {
	pod.Spec.Volumes = []corev1.Volume{{Name: "memory", VolumeSource: corev1.VolumeSource{
		EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory},
	}}}
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "memory", MountPath: "/memory"}}
}

func TestAKubeletRunsStaticPods(t *testing.T) {
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			k, b := startKubelet(t, version)
			pod := kubelet.StaticPod("web", b.reg.Image("testbed/app:1"), "print", "hello", "then", "sleep")
			withMemory(pod)
			require.NoError(t, k.AddManifest(pod))
			running, err := k.WaitRunning(t.Context(), "web")
			require.NoError(t, err)
			assert.Zero(t, running.Status.ContainerStatuses[0].RestartCount)

			out, code, err := k.Exec(t.Context(), "web", "app", "app", "file", "/proc/mounts")
			require.NoError(t, err)
			assert.Zero(t, code)
			assert.Contains(t, out, "tmpfs /memory tmpfs", "what the kubelet mounts reaches the runtime")
			_, code, err = k.Exec(t.Context(), "web", "app", "app", "exit", "7")
			require.NoError(t, err)
			assert.Equal(t, 7, code)
			log, err := k.ContainerLog(t.Context(), "web", "app")
			require.NoError(t, err)
			assert.Equal(t, "hello\n", log)

			// The kubelet restarts a dead container; a restart of the kubelet changes nothing.
			id := containers(t, b)[0].Id
			require.NoError(t, unix.Kill(pidOf(t, b, id), unix.SIGKILL))
			_, err = k.WaitRestarted(t.Context(), "web", 1)
			require.NoError(t, err)
			before := containers(t, b)
			require.NoError(t, k.Terminate(t.Context()))
			require.NoError(t, k.Start(t.Context()))
			again, err := k.WaitRunning(t.Context(), "web")
			require.NoError(t, err)
			assert.Equal(t, int32(1), again.Status.ContainerStatuses[0].RestartCount)
			assert.Equal(t, before, containers(t, b))
			require.Eventually(t, func() bool {
				age, err := k.PLEGAge(t.Context())
				return err == nil && age < 10*time.Second
			}, time.Minute, 100*time.Millisecond, "the kubelet looks at its pods")

			require.NoError(t, k.RemoveManifest("web"))
			require.NoError(t, k.WaitGone(t.Context(), "web"))
			require.NoError(t, host.Await(t.Context(), "the sandbox to end", func() error {
				pods, err := b.runtime.ListPodSandbox(t.Context(), nil)
				if err == nil && len(pods) > 0 && pods[0].State == runtimeapi.PodSandboxState_SANDBOX_READY {
					err = fmt.Errorf("it is %v", pods[0])
				}
				return err
			}))
		})
	}
}

// containers lists those that run.
func containers(t *testing.T, b *bench) []*runtimeapi.Container {
	t.Helper()
	all, err := b.runtime.ListContainers(t.Context(), &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	})
	require.NoError(t, err)
	require.NotEmpty(t, all)
	return all
}

func TestDestroyingAKubeletLeavesNothing(t *testing.T) {
	fixed := []string{"/var/lib/kubelet", "/var/log/containers"}
	var before []bool
	for _, path := range fixed {
		_, err := os.Stat(path)
		before = append(before, err == nil)
	}
	for name, spoil := range map[string]func(*kubelet.Kubelet, *bench) error{
		"running":      func(*kubelet.Kubelet, *bench) error { return nil },
		"killed":       func(k *kubelet.Kubelet, _ *bench) error { return k.Kill() },
		"frozen":       func(k *kubelet.Kubelet, _ *bench) error { return k.Freeze() },
		"runtime gone": func(_ *kubelet.Kubelet, b *bench) error { return b.Kill() },
		"forgotten": func(k *kubelet.Kubelet, _ *bench) error {
			return os.Remove(filepath.Join(k.Dir, "kubelet.pid"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			k, b := startKubelet(t, "2.4")
			for _, name := range []string{"one", "two"} {
				pod := kubelet.StaticPod(name, b.reg.Image("testbed/app:1"))
				withMemory(pod)
				require.NoError(t, k.AddManifest(pod))
			}
			var names []string
			for _, name := range []string{"one", "two"} {
				pod, err := k.WaitRunning(t.Context(), name)
				require.NoError(t, err)
				names = append(names, string(pod.UID))
			}
			names = append(names, k.Dir, k.NodeName)
			require.GreaterOrEqual(t, len(machine(names...)), len(names), "the search finds what is there")
			require.Contains(t, host.Instances(), k.Dir)
			require.NotEmpty(t, host.Leftovers(k.Dir))
			require.NoError(t, spoil(k, b))
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			require.NoError(t, k.Destroy(ctx))
			assert.Empty(t, host.Leftovers(k.Dir))
			assert.NotContains(t, host.Instances(), k.Dir)
			assert.NoError(t, k.Destroy(ctx), "a second time does no harm")
			if name == "running" {
				assert.Empty(t, machine(names...))
			}
			require.NoError(t, b.Destroy(ctx)) // containerd has files of the pods
			assert.Empty(t, machine(names...))
		})
	}
	for i, path := range fixed {
		_, err := os.Stat(path)
		assert.Equal(t, before[i], err == nil, path)
	}
}

func TestKubeletsChangeNoSysctl(t *testing.T) {
	read := func() (all []string) {
		for _, name := range []string{"vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys"} {
			value, _ := os.ReadFile(filepath.Join("/proc/sys", name))
			all = append(all, name+"="+string(value))
		}
		return all
	}
	before := read()
	startKubelet(t, "2.4")
	assert.Equal(t, before, read())
}

func TestAKubeletThatFailsToStartLeavesNothing(t *testing.T) {
	bin := testbed.Require(t, build.Kubelet)
	dir, err := os.MkdirTemp("", "ctb-")
	require.NoError(t, err)
	_, err = kubelet.Start(t.Context(), kubelet.Config{
		Binaries: bin, Dir: dir, Endpoint: "unix:///nowhere", ExtraYAML: "featureGates: {NoSuchGate: true}",
	})
	require.ErrorContains(t, err, "it has ended")
	assert.ErrorContains(t, err, "NoSuchGate")
	assert.Empty(t, host.Leftovers(dir))
	assert.Empty(t, machine(dir))
}
