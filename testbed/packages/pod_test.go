package packages

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/internal/ownimage"
	"github.com/criproxy/criproxy/testbed/internal/systemd"
	"github.com/criproxy/criproxy/testbed/kubelet"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// A caller lists pods all the time.
type caller struct {
	client internalapi.RuntimeService
	stop   context.CancelFunc
	done   sync.WaitGroup
	calls  int
	failed []error
}

func startCalling(t *testing.T, endpoint string) *caller {
	t.Helper()
	client, err := runtimes.Runtime(t.Context(), endpoint)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	c := &caller{client: client, stop: stop}
	c.done.Go(func() {
		for ctx.Err() == nil {
			if _, err := client.ListPodSandbox(t.Context(), nil); err != nil {
				c.failed = append(c.failed, err)
			}
			c.calls++
		}
	})
	t.Cleanup(func() {
		stop()
		c.done.Wait()
		client.Close(context.Background())
	})
	return c
}

// daemonSetsPod returns the DaemonSet's pod as on a node: with the image, and with the ConfigMap as a folder, as kubelet
// would create it with an API server.
func daemonSetsPod(t *testing.T, m *systemd.Machine, image, folder string) *corev1.Pod {
	t.Helper()
	config, _, set := manifests(t)
	require.NoError(t, os.WriteFile(filepath.Join(folder, "config.yaml"), []byte(config), 0o644))
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: "criproxy", Namespace: set.Namespace, Labels: set.Spec.Template.Labels},
		Spec:       set.Spec.Template.Spec,
	}
	pod.Spec.NodeSelector = nil // there is no scheduler here
	pod.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: folder}}
	c := &pod.Spec.Containers[0]
	c.Image = image
	c.Env = append(c.Env, corev1.EnvVar{Name: "NODE_PID", Value: strconv.Itoa(m.PID)}) // the node's first process is not this machine's
	return pod
}

// A whole node: systemd, containerd and a kubelet that runs the DaemonSet's pod from the image of a release.
func TestTheDaemonSetsPodBringsCriproxyAndMayGoAgain(t *testing.T) {
	m := boot(t)
	m.Run("mount", "-t", "tmpfs", "tmpfs", "/usr/local/bin") // the rest of /usr is read-only here
	reg := testbed.NewRegistry(t)
	for i, version := range versions {
		require.NoError(t, reg.Push("criproxy:"+strconv.Itoa(i), ownimage.Build(t, version)))
	}
	c := testbed.NewContainerd(t, reg, runtimes.Config{})
	m.Relay("/run/containerd/containerd.sock", c.Socket())
	k := testbed.NewKubelet(t, kubelet.Config{Endpoint: c.Endpoint()})
	running := func(name string, wanted func(corev1.ContainerStatus) bool) corev1.ContainerStatus {
		t.Helper()
		pod, err := k.WaitPod(t.Context(), name, "to run as wanted", func(pod *corev1.Pod) bool {
			return pod != nil && len(pod.Status.ContainerStatuses) == 1 && pod.Status.ContainerStatuses[0].State.Running != nil &&
				wanted(pod.Status.ContainerStatuses[0])
		})
		require.NoError(t, err)
		return pod.Status.ContainerStatuses[0]
	}
	anyhow := func(corev1.ContainerStatus) bool { return true }

	// kubelet uses containerd; only its configuration names criproxy.
	folder := t.TempDir()
	require.NoError(t, k.AddManifest(daemonSetsPod(t, m, reg.Image("criproxy:0"), folder)))
	m.Eventually("criproxy serves", func() bool { return m.Show("ActiveState") == "active" })
	assert.Contains(t, m.Run("/usr/local/bin/criproxy", "version"), "criproxy "+versions[0])
	assert.Equal(t, "enabled", m.Run("systemctl", "is-enabled", "criproxy.service"), "it is there after a boot, before kubelet")
	require.NoError(t, k.Terminate(t.Context()))
	endpoint := "unix://" + m.At("/run/criproxy.sock")
	config, err := os.ReadFile(filepath.Join(k.Dir, "config.yaml"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(k.Dir, "config.yaml"), []byte(strings.ReplaceAll(string(config), c.Endpoint(), endpoint)), 0o644))
	require.NoError(t, k.Start(t.Context()))
	require.NoError(t, k.AddManifest(kubelet.StaticPod("app", reg.Image("testbed/app:1"), "tick")))
	app := running("app", anyhow)
	own := running("criproxy", anyhow)
	socket, pid := m.Socket(), m.Show("MainPID")
	calling := startCalling(t, endpoint)

	// The pod's container ends. kubelet starts another one, through the proxy that the pod has installed.
	require.NoError(t, calling.client.StopContainer(t.Context(), strings.TrimPrefix(own.ContainerID, "containerd://"), 0))
	running("criproxy", func(s corev1.ContainerStatus) bool { return s.RestartCount == own.RestartCount+1 })
	assert.Equal(t, pid, m.Show("MainPID"))

	// Another image: the program changes, and the socket stays.
	require.NoError(t, k.AddManifest(daemonSetsPod(t, m, reg.Image("criproxy:1"), folder)))
	m.Eventually("the new one serves", func() bool { return m.Show("MainPID") != pid })
	assert.Contains(t, m.Run("/usr/local/bin/criproxy", "version"), "criproxy "+versions[1])
	assert.Equal(t, socket, m.Socket())
	running("criproxy", anyhow)
	pid = m.Show("MainPID")

	// The pod goes, but the program that it has installed stays.
	require.NoError(t, k.RemoveManifest("criproxy"))
	m.Eventually("its containers have ended", func() bool {
		left, err := calling.client.ListContainers(t.Context(), &runtimeapi.ContainerFilter{
			State:         &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
			LabelSelector: map[string]string{"io.kubernetes.pod.name": "criproxy-" + k.NodeName},
		})
		require.NoError(t, err)
		return len(left) == 0
	})
	assert.Equal(t, pid, m.Show("MainPID"))
	assert.Equal(t, "0", m.Show("NRestarts"))

	calling.stop()
	calling.done.Wait()
	assert.Empty(t, calling.failed, "of %d calls", calling.calls)
	assert.Greater(t, calling.calls, 100)
	after := running("app", anyhow)
	assert.Equal(t, app.ContainerID, after.ContainerID)
	assert.Zero(t, after.RestartCount)
}
