package crio

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/internal/figures"
	"github.com/criproxy/criproxy/testbed/kubelet"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// A node is a kubelet over criproxy over CRI-O and containerd, with a pod on each.
type node struct {
	crio    *runtimes.CRIO
	kubelet *kubelet.Kubelet
	home    map[string]string // :: pod → the runtime that it is on, "crio" or "containerd"
}

// newNode starts all of it. kubelet finds criproxy at run/crio/crio.sock, which it takes for CRI-O, and so does its cAdvisor.
func newNode(t *testing.T, crioFirst bool) *node {
	t.Helper()
	n := &node{}
	reg := testbed.NewRegistry(t)
	mirrors := map[string]string{"registry.test": reg.Addr}
	n.crio = testbed.NewCRIO(t, reg, runtimes.CRIOConfig{Mirrors: mirrors})
	testbed.Require(t, build.Kubelet)
	containerd := testbed.NewContainerd(t, reg, runtimes.Config{Mirrors: mirrors})
	dir, err := os.MkdirTemp("", "crio-") // t.TempDir is too long for a socket
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	folder := filepath.Join(dir, "run/crio")
	require.NoError(t, os.MkdirAll(folder, 0o755))
	yaml := fmt.Sprintf("backends:\n- address: %s\n- {name: two.test, address: %s}\n", n.crio.Socket(), containerd.Socket())
	config := kubelet.Config{ExtraYAML: "crashLoopBackOff: {maxContainerRestartPeriod: 1s}\n"}
	n.home = map[string]string{"first": "crio", "second": "containerd"}
	if crioFirst {
		yaml += fmt.Sprintf("listeners: [{path: %s/crio.sock}]\n", folder)
		config.Endpoint, config.RunCRIO = "unix://"+folder+"/crio.sock", folder
	} else {
		yaml = fmt.Sprintf("backends:\n- address: %s\n- {name: two.test, address: %s}\n", containerd.Socket(), n.crio.Socket())
		n.home = map[string]string{"first": "containerd", "second": "crio"}
	}
	p := testbed.NewProxy(t, yaml)
	if !crioFirst {
		config.Endpoint = p.Endpoint()
	}
	n.kubelet = testbed.NewKubelet(t, config)
	for name := range n.home {
		pod := kubelet.StaticPod(name, "registry.test/testbed/app:1", "tick")
		if name == "second" {
			pod.Annotations["kubernetes.io/target-runtime"] = "two.test"
		}
		require.NoError(t, n.kubelet.AddManifest(pod))
	}
	for name := range n.home {
		_, err := n.kubelet.WaitRunning(t.Context(), name)
		require.NoError(t, err)
	}
	return n
}

// containers returns the container of each pod, and how often it was restarted.
func (n *node) containers(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for name := range n.home {
		pod, err := n.kubelet.WaitRunning(t.Context(), name)
		require.NoError(t, err)
		all[name] = fmt.Sprintf("%s, %d restarts", pod.Status.ContainerStatuses[0].ContainerID, pod.Status.ContainerStatuses[0].RestartCount)
	}
	return all
}

// works runs a command in the container of a pod.
func (n *node) works(t *testing.T, pod string) {
	t.Helper()
	out, code, err := n.kubelet.Exec(t.Context(), pod, "app", "app", "file", "/etc/image")
	require.NoError(t, err, pod)
	assert.Zero(t, code)
	assert.Equal(t, "testbed/app:1\n", out)
}

// relist waits until kubelet has had a new view of all pods, twice.
func (n *node) relist(t *testing.T) {
	t.Helper()
	for range 2 {
		before, err := n.kubelet.Metrics(t.Context())
		require.NoError(t, err)
		require.NoError(t, host.Poll(t.Context(), "kubelet to look at its pods", func() bool {
			now, err := n.kubelet.Metrics(t.Context())
			return err == nil && now["kubelet_pleg_last_seen_seconds"] > before["kubelet_pleg_last_seen_seconds"]
		}))
	}
}

// A kubelet's pods on CRI-O and on containerd live through CRI-O's death and through its silence, whichever is the primary.
func TestPodsLiveThroughOutagesOfCRIO(t *testing.T) {
	for _, first := range []bool{true, false} {
		t.Run(map[bool]string{true: "CRI-O is the primary", false: "CRI-O is the second"}[first], func(t *testing.T) {
			n := newNode(t, first)
			for pod := range n.home {
				n.works(t, pod)
			}
			before := n.containers(t)
			for _, outage := range []struct {
				name       string
				begin, end func() error
			}{
				{"killed", n.crio.Kill, func() error { return n.crio.Start(t.Context()) }},
				{"stopped", n.crio.Freeze, n.crio.Thaw},
			} {
				require.NoError(t, outage.begin())
				n.relist(t)
				for pod, runtime := range n.home {
					if runtime == "containerd" {
						n.works(t, pod)
					}
				}
				require.NoError(t, outage.end())
				for pod, runtime := range n.home {
					if runtime == "crio" {
						require.NoError(t, host.Await(t.Context(), "criproxy to find CRI-O again", func() error {
							_, _, err := n.kubelet.Exec(t.Context(), pod, "app", "app", "file", "/etc/image")
							return err
						}))
					}
				}
				n.relist(t)
				assert.Equal(t, before, n.containers(t), "after CRI-O was %s", outage.name)
				for pod := range n.home {
					n.works(t, pod)
				}
			}
		})
	}
}

// A kubelet that finds criproxy at CRI-O's path asks there over HTTP for figures, as does its cAdvisor. They are CRI-O's.
func TestAKubeletAtCRIOsPathHasCRIOsFigures(t *testing.T) {
	n := newNode(t, true)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	require.NoError(t, host.Await(ctx, "the figures of CRI-O's pod", func() error { return n.figures(ctx) }))
}

// ofCRIO are figures that CRI-O gives over HTTP.
var ofCRIO = []figures.Figure{
	{Page: figures.Summary, Name: "cpu"}, {Page: figures.Summary, Name: "memory"}, {Page: figures.Summary, Name: "network"},
	{Page: figures.CAdvisor, Name: "container_cpu_usage_seconds_total"},
}

// figures says what the kubelet does not say of CRI-O's pod.
func (n *node) figures(ctx context.Context) error {
	missing, err := figures.Missing(func(path string) (string, error) {
		body, err := n.kubelet.Page(ctx, path)
		return string(body), err
	}, "first-"+n.kubelet.NodeName)
	for _, f := range missing {
		if slices.Contains(ofCRIO, f) {
			err = errors.Join(err, fmt.Errorf("there is no %s", f))
		}
	}
	return err
}
