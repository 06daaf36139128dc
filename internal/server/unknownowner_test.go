package server

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/fakecri"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// criproxy has just been installed on a node with pods, and still asks for their statuses when their runtime goes.
func TestListedPodsStayListedFromTheFirstSecondOn(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	for i := range 20 {
		n.run(1, fmt.Sprint("db", i), 1)
	}
	n.stop()
	require.NoError(t, os.RemoveAll(n.cfg.StateDir))
	n.runtimes[1].When(testkit.On(func(context.Context, string, any) error {
		time.Sleep(150 * time.Millisecond) // a runtime that is busy
		return nil
	}, "PodSandboxStatus", "ContainerStatus"))
	n.start()
	for _, l := range []listing{listPods(nil), listContainers(nil)} { // what PLEG does first
		got, err := l.unary(n)
		require.NoError(t, err)
		require.Len(t, got, 20)
	}
	n.runtimes[1].Kill()
	n.isDown(1)
	for _, l := range []listing{listPods(nil), listContainers(nil)} {
		got, err := l.unary(n)
		require.NoError(t, err)
		assert.Len(t, got, 20, "%s: kubelet kills what is not there", l.name)
	}
}

func TestARuntimeWithoutItsCRIPluginStopsNoOther(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	n.run(0, "web", 1)
	n.run(1, "db", 1)
	n.known()
	n.stop()
	n.runtimes[1].When(testkit.Failing(status.Error(codes.Unimplemented, "unknown service runtime.v1.RuntimeService")))
	n.start()
	for _, l := range []listing{listPods(nil), listContainers(nil)} {
		got, err := l.unary(n)
		require.NoError(t, err, l.name)
		assert.Len(t, got, 2, l.name)
	}
}

// kubelet takes NotFound for gone, and tears down the volumes of running pods.
func TestAnIdOfASilentRuntimeIsNotNotFound(t *testing.T) {
	t.Parallel()
	n := newNode(t, func(c *config.Config) { c.IDs = config.NativeIDs })
	db := n.run(1, "db", 1)
	n.known()
	n.runtimes[1].Kill()
	n.isDown(1)
	n.stop()
	file := stateFile(n.cfg, n.cfg.Backends[1]).Path
	require.NoError(t, os.WriteFile(file, []byte("broken"), 0o600))
	n.start()
	n.isDown(1)
	_, err := n.StopContainer(n.ctx(), &runtimeapi.StopContainerRequest{ContainerId: db.containers[0]})
	assert.Equal(t, codes.Unavailable, status.Code(err), "StopContainer: %v", err)
	_, err = n.StopPodSandbox(n.ctx(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: db.sandbox})
	assert.Equal(t, codes.Unavailable, status.Code(err), "StopPodSandbox: %v", err)
	_, err = n.ContainerStatus(n.ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: db.containers[0]})
	assert.Equal(t, codes.Unavailable, status.Code(err), "ContainerStatus: %v", err)
}

func TestOneImageThatWasAskedForIsNotAllImages(t *testing.T) {
	t.Parallel()
	crio := fakecri.Config{LooksUpImages: true}
	n := newNode(t, nil, machineConfig{Config: crio}, machineConfig{Config: crio, backend: config.Backend{Name: "beta.io"}})
	for _, image := range []string{"beta.io/one", "beta.io/two"} {
		_, err := n.PullImage(n.ctx(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: image}})
		require.NoError(t, err)
	}
	n.known()
	// crictl images one
	r, err := n.ListImages(n.ctx(), &runtimeapi.ListImagesRequest{Filter: &runtimeapi.ImageFilter{Image: &runtimeapi.ImageSpec{Image: "beta.io/one"}}})
	require.NoError(t, err)
	require.Len(t, r.GetImages(), 1)
	n.runtimes[1].Kill()
	n.isDown(1)
	got, err := listImages().unary(n)
	require.NoError(t, err)
	assert.Len(t, got, 2, "of the images it has")
	image, err := n.ImageStatus(n.ctx(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: "beta.io/two"}})
	require.NoError(t, err)
	assert.NotNil(t, image.GetImage(), "kubelet would run its containers as root")
}

func TestAnUnavailableStatusIsNotAskedForRepeatedly(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	n.runtimes[1].When(testkit.Failing(status.Error(codes.Unavailable, "the snapshotter is not there"), "ContainerStatus"))
	n.run(1, "db", 1)
	asked := func() int { return len(n.runtimes[1].Calls("ContainerStatus")) }
	testkit.Eventually(t, "it is asked for", func() bool { return asked() > 0 })
	rounds := func() int { return len(n.runtimes[1].Calls("ListContainers")) }
	before, first := asked(), rounds()
	testkit.Eventually(t, "two rounds follow", func() bool { return rounds() > first+2 })
	assert.LessOrEqual(t, asked()-before, 3*(rounds()-first), "about once a round")
}

// kubelet cleaned up after a reboot before the second runtime was up, and then could never remove its pods.
func TestWhatAnotherNeverHadHasOneOwner(t *testing.T) {
	t.Parallel()
	n := newNode(t, func(c *config.Config) { c.IDs = config.NativeIDs })
	db := n.run(1, "db", 1)
	n.stop()
	n.runtimes[1].Kill()
	require.NoError(t, os.RemoveAll(n.cfg.StateDir))
	n.start()
	remove := &runtimeapi.RemoveContainerRequest{ContainerId: db.containers[0]}
	_, err := n.RemoveContainer(n.ctx(), remove)
	require.NoError(t, err, "no runtime can have it")
	n.runtimes[1].Start()
	n.isUp(1)
	n.known()
	_, err = n.ContainerStatus(n.ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: db.containers[0]})
	require.NoError(t, err)
	_, err = n.RemoveContainer(n.ctx(), remove)
	require.NoError(t, err)
	assert.Len(t, n.runtimes[1].Calls("RemoveContainer"), 1)
}
