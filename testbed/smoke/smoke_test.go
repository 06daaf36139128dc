// Package smoke is the one test of real parts that every change has to pass: criproxy between kubelet's own client and two
// runtimes, a containerd built from its module and a runtime in memory. The suites beside it, in make test-all, go deep.
package smoke

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/fakecri"
	"github.com/criproxy/criproxy/internal/testing/testkit"
	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

func TestMain(m *testing.M) {
	klog.SetLogger(klog.Logger{}) // silence: the kubelet's client logs each failed call, and a killed runtime makes some
	testbed.Main(m, build.ForContainerd("2.4")...)
}

// second is the name of the runtime in memory.
const second = "two.test"

func TestPodsRunOnTwoRuntimesAndOutliveAnOutageOfOne(t *testing.T) {
	reg := testbed.NewRegistry(t)
	containerd := testbed.NewContainerd(t, reg, runtimes.Config{Version: "2.4"})
	inMemory := testkit.NewMachine(t, second, filepath.Join(testkit.SocketDir(t), "two.sock"), fakecri.Config{Name: "two"})
	inMemory.Start()
	p := testbed.NewProxy(t, fmt.Sprintf("backends:\n- {address: %s}\n- {name: %s, address: %s}\n", containerd.Socket(), second, inMemory.Path))

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cri, images := testbed.NewClients(t, p.Endpoint())

	// A pod on each, and a container in it that prints a word and stays.
	var pods, containers []string
	for _, runtime := range []string{"", second} {
		config := runtimes.OnHostNetwork(containerd.PodConfig("on-" + cmp.Or(runtime, "primary")))
		image, args := reg.Image("testbed/app:1"), []string{"print", "hello", "then", "sleep"}
		if runtime != "" {
			config.Annotations["kubernetes.io/target-runtime"] = runtime
			image = runtime + "/" + image
		}
		require.NoError(t, os.MkdirAll(config.LogDirectory, 0o755))
		pod, err := cri.RunPodSandbox(ctx, config, "")
		require.NoError(t, err, runtime)
		_, err = images.PullImage(ctx, &runtimeapi.ImageSpec{Image: image}, nil, config)
		require.NoError(t, err, runtime)
		app := runtimes.ContainerConfig("app", image, args...)
		container, err := cri.CreateContainer(ctx, pod, app, config)
		require.NoError(t, err, runtime)
		require.NoError(t, cri.StartContainer(ctx, container), runtime)
		pods, containers = append(pods, pod), append(containers, container)
		if runtime == "" {
			log := filepath.Join(config.LogDirectory, app.LogPath)
			require.NoError(t, host.Await(ctx, "the container's log", func() error { return holds(log, "stdout F hello\n") }))
		}
	}
	assert.NotContains(t, pods[0], "__")
	assert.Contains(t, pods[1], second+"__")

	// Lists show both, and exec reaches each.
	all := func() []string { return names(ctx, t, cri) }
	assert.ElementsMatch(t, containers, all())
	out, _, err := cri.ExecSync(ctx, containers[0], []string{"app", "file", "/etc/image"}, 20*time.Second)
	require.NoError(t, err)
	assert.Equal(t, "testbed/app:1\n", string(out))
	out, _, err = cri.ExecSync(ctx, containers[1], []string{"echo", "hello"}, 20*time.Second)
	require.NoError(t, err)
	assert.Equal(t, "hello\n", string(out))

	// One is killed: its container stays in the lists, and calls about it fail; the other one is not affected.
	require.NoError(t, containerd.Kill())
	require.NoError(t, host.Await(ctx, "criproxy to notice", func() error {
		_, _, err := cri.ExecSync(ctx, containers[0], []string{"app", "pid"}, 5*time.Second)
		if err == nil {
			return fmt.Errorf("the runtime still answers")
		}
		return nil
	}))
	assert.ElementsMatch(t, containers, all())
	_, _, err = cri.ExecSync(ctx, containers[1], []string{"echo", "hello"}, 20*time.Second)
	assert.NoError(t, err)

	// It comes back, and its container never stopped.
	require.NoError(t, containerd.Start(ctx))
	require.NoError(t, host.Await(ctx, "the primary to answer through criproxy", func() error {
		_, _, err := cri.ExecSync(ctx, containers[0], []string{"app", "pid"}, 20*time.Second)
		return err
	}))
	assert.ElementsMatch(t, containers, all())

	for _, pod := range pods {
		require.NoError(t, cri.StopPodSandbox(ctx, pod))
		require.NoError(t, cri.RemovePodSandbox(ctx, pod))
	}
	assert.Empty(t, all())
}

// names returns the ids of all running containers.
func names(ctx context.Context, t *testing.T, cri internalapi.RuntimeService) []string {
	t.Helper()
	list, err := cri.ListContainers(ctx, &runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}})
	require.NoError(t, err)
	var ids []string
	for _, c := range list {
		ids = append(ids, c.Id)
	}
	slices.Sort(ids)
	return ids
}

// holds returns an error unless a file has a text.
func holds(file, want string) error {
	data, err := os.ReadFile(file)
	if err == nil && !strings.Contains(string(data), want) {
		err = fmt.Errorf("%s holds %q, and not %q", file, data, want)
	}
	return err
}
