package server

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/testing/testkit"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// apiPod is a pod from the API server, with the time at which kubelet first saw it. Most pods differ
// in nothing else.
func apiPod(name, seen string) *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata:    &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: "uid-" + name},
		Annotations: map[string]string{"kubernetes.io/config.seen": seen, "kubernetes.io/config.source": "api"},
	}
}

// errAbsent is kubelet's error for an absent image that it must not pull.
var errAbsent = errors.New("ErrImageNeverPull")

// startOnce does what kubelet does to start a container in a pod that has a sandbox, once.
func (n *node) startOnce(sandbox string, config *runtimeapi.PodSandboxConfig, image string, never bool) error {
	n.Helper()
	spec := &runtimeapi.ImageSpec{Image: image, Annotations: config.Annotations}
	is, err := n.ImageStatus(n.ctx(), &runtimeapi.ImageStatusRequest{Image: spec})
	ref := is.GetImage().GetId()
	if err == nil && ref == "" {
		if never {
			return errAbsent
		}
		var pulled *runtimeapi.PullImageResponse
		pulled, err = n.PullImage(n.ctx(), &runtimeapi.PullImageRequest{Image: spec, SandboxConfig: config})
		ref = pulled.GetImageRef()
	}
	if err != nil {
		return err
	}
	user, err := n.ImageStatus(n.ctx(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: image}})
	if err != nil {
		return err
	}
	require.NotNil(n, user.GetImage(), "the container would run as uid 0")
	_, err = n.CreateContainer(n.ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox, SandboxConfig: config, Config: &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: image, Attempt: rand.Uint32()}, Image: &runtimeapi.ImageSpec{Image: ref, UserSpecifiedImage: image}}})
	return err
}

// twoPods is a node with a pod on each of its runtimes. kubelet's requests for the status of an image
// are the same for both pods. The second runtime has the image.
func twoPods(t *testing.T, policy string, change func(i int, config *runtimeapi.PodSandboxConfig)) (n *node, sandboxes []string, configs []*runtimeapi.PodSandboxConfig) {
	n = newNode(t, nil, machineConfig{}, machineConfig{backend: config.Backend{Name: "beta.io", Policy: policy, Handlers: map[string]string{"two": "runc"}}})
	for i, handler := range []string{"", "two"} {
		config := apiPod(fmt.Sprint("pod", i), fmt.Sprint("2026-11-21T15:00:00.00000000", i, "Z"))
		if change != nil {
			change(i, config)
		}
		sandbox, at := n.sandbox(config, handler)
		require.Equal(t, i, at)
		sandboxes, configs = append(sandboxes, sandbox), append(configs, config)
	}
	require.NoError(t, n.startOnce(sandboxes[1], configs[1], "app:1", false))
	require.Empty(t, n.runtimes[0].Images())
	n.known()
	for i, config := range configs { // kubelet restarts
		config.Annotations["kubernetes.io/config.seen"] = fmt.Sprint("2026-11-22T15:00:00.00000000", i, "Z")
	}
	return n, sandboxes, configs
}

var policies = []string{"last-known", "skip", "fail"}

func TestAPodGetsItsOwnImageAfterAKubeletRestart(t *testing.T) {
	t.Parallel()
	for _, policy := range policies {
		n, sandboxes, configs := twoPods(t, policy, nil)
		err := n.startOnce(sandboxes[0], configs[0], "app:1", false)
		if err != nil {
			require.NoError(t, n.startOnce(sandboxes[0], configs[0], "app:1", false), "kubelet tries again, and by then we know")
		}
		assert.Len(t, n.runtimes[0].Images(), 1)
	}
}

func TestAnnotationsTellAPodWhereTheyDiffer(t *testing.T) {
	t.Parallel()
	for _, policy := range policies {
		n, sandboxes, configs := twoPods(t, policy, func(i int, config *runtimeapi.PodSandboxConfig) {
			config.Annotations["example.com/app"] = fmt.Sprint("app", i)
		})
		require.NoError(t, n.startOnce(sandboxes[0], configs[0], "app:1", false), "policy %s", policy)
	}
}

func TestAnUnpulledImageIsFoundAfterAKubeletRestart(t *testing.T) {
	t.Parallel()
	for _, policy := range policies {
		n, sandboxes, configs := twoPods(t, policy, nil)
		assert.NoError(t, n.startOnce(sandboxes[1], configs[1], "app:1", true))
		err := n.startOnce(sandboxes[0], configs[0], "app:1", true)
		if err != nil && !errors.Is(err, errAbsent) {
			assert.ErrorIs(t, n.startOnce(sandboxes[0], configs[0], "app:1", true), errAbsent, "the primary does not have it")
		}
	}
}

func TestAnOutageHidesNoImageFromThePrimarysPods(t *testing.T) {
	t.Parallel()
	for _, policy := range policies {
		n, sandboxes, configs := twoPods(t, policy, nil)
		n.runtimes[1].Kill()
		n.isDown(1)
		assert.NoError(t, n.startOnce(sandboxes[0], configs[0], "other:1", false), "policy %s", policy)
		if policy != "last-known" {
			_, err := n.ImageStatus(n.ctx(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: "app:1"}})
			testkit.AssertCode(t, codes.Unavailable, err)
		}
	}
}

func TestAPodsImageIsWhereItsSandboxIs(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil, machineConfig{}, machineConfig{backend: config.Backend{Name: "beta.io", Handlers: map[string]string{"two": "runc"}}},
		machineConfig{backend: config.Backend{Name: "gamma.io"}})
	config := apiPod("vm", "2026-11-21T15:00:00.000000001Z")
	config.Annotations["kubernetes.io/target-runtime"] = "gamma.io"
	ran, err := n.RunPodSandbox(n.ctx(), &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: "two"})
	require.NoError(t, err)
	require.Len(t, n.runtimes[1].Pods(), 1, "the handler goes before the annotation")
	require.NoError(t, n.startOnce(ran.GetPodSandboxId(), config, "app:1", false))
	assert.Len(t, n.runtimes[1].Images(), 1)
	assert.Empty(t, n.runtimes[2].Images())
}

func TestABarePullThatNamesNoPodIsThePrimarys(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	pull := func(image string) string {
		pulled, err := n.PullImage(n.ctx(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: image}})
		require.NoError(t, err)
		return pulled.GetImageRef()
	}
	second := pull("beta.io/app:1")
	n.known()
	first := pull("app:1")
	assert.Equal(t, "beta.io/"+first, second, "one image, on two runtimes")
	require.Len(t, n.runtimes[0].Images(), 1)
	_, err := n.RemoveImage(n.ctx(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: "app:1"}})
	require.NoError(t, err)
	assert.Empty(t, n.runtimes[0].Images())
	assert.Len(t, n.runtimes[1].Images(), 1)
	is, err := n.ImageStatus(n.ctx(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: "app:1"}})
	require.NoError(t, err)
	assert.Equal(t, second, is.GetImage().GetId(), "absent would make kubelet run its containers as uid 0")
}
