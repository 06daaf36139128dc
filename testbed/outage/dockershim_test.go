package outage_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/kubelet"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

var withDocker = flag.Bool("docker", false, "run the test with Docker, too, whose build takes long")

// dockers are the components that the test needs in addition to those for containers.
func dockers() []string {
	if *withDocker {
		return []string{build.Dockerd, build.CRIDockerd}
	}
	return nil
}

// A docker is a dockerd and the cri-dockerd in front of it.
type docker struct {
	dir         string
	daemon, cri host.Process
}

func (d *docker) socket() string { return filepath.Join(d.dir, "cri-dockerd.sock") }

// startDocker starts both, with the containerd and runc of the testbed, and the network that one of its runtimes has.
func startDocker(t *testing.T, reg *runtimes.Registry, network *runtimes.Containerd) *docker {
	t.Helper()
	programs := testbed.Require(t, dockers()...)
	dir, err := os.MkdirTemp("", "dock-") // t.TempDir is too long for a socket
	require.NoError(t, err)
	at := func(name string) string { return filepath.Join(dir, name) }
	d := &docker{
		dir:    dir,
		daemon: host.NewProcess("dockerd", at("dockerd")),
		cri:    host.NewProcess("cri-dockerd", at("cri-dockerd")),
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s\n%s", d.daemon.LogTail(20), d.cri.LogTail(20))
		}
		assert.NoError(t, d.cri.Kill())
		assert.NoError(t, d.daemon.Terminate(context.Background())) // t's context has ended
		assert.NoError(t, os.RemoveAll(dir))
		_ = os.Remove("/run/docker/plugins") // dockerd always makes it there; fails if others use it
		_ = os.Remove("/run/docker")
	})
	bin := network.Binaries
	path := "PATH=" + bin.Containerd["1.7"] + ":" + filepath.Dir(bin.Runc) + ":" + os.Getenv("PATH")
	require.NoError(t, d.daemon.Start([]string{
		programs.Dockerd, "--data-root", at("root"), "--exec-root", at("exec"), "--pidfile", at("docker.pid"), "--host", "unix://" + at("docker.sock"),
		"--bridge", "none", "--userland-proxy=false", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false", "--exec-opt", "native.cgroupdriver=cgroupfs",
		"--add-runtime", "noseccomp=" + bin.NoSeccomp, "--default-runtime", "noseccomp",
	}, append(os.Environ(), path)))
	require.Eventually(t, func() bool {
		_, err := os.Stat(at("docker.sock"))
		_, alive := d.daemon.PID()
		return err == nil || !alive
	}, time.Minute, 50*time.Millisecond, "dockerd listens")
	require.NoError(t, d.cri.Start([]string{
		programs.CRIDockerd, "--container-runtime-endpoint", "unix://" + d.socket(), "--docker-endpoint", "unix://" + at("docker.sock"),
		"--cri-dockerd-root-directory", at("state"), "--network-plugin", "cni", "--cni-bin-dir", bin.CNI,
		"--cni-conf-dir", filepath.Join(network.Dir, "cni", "net.d"), "--cni-cache-dir", at("cni"),
		"--pod-infra-container-image", reg.Image("testbed/pause:1"), "--streaming-bind-addr", "127.0.0.1:0",
	}, append(os.Environ(), path)))
	require.NoError(t, runtimes.WaitReady(t.Context(), d.cri, d.socket()))
	return d
}

// has returns the names of the pods on Docker, according to Docker itself.
func (d *docker) has(t *testing.T) []string {
	t.Helper()
	client, err := runtimes.Runtime(t.Context(), "unix://"+d.socket())
	require.NoError(t, err)
	defer client.Close(t.Context())
	return podsOf(t, client)
}

func podsOf(t *testing.T, client internalapi.RuntimeService) []string {
	t.Helper()
	all, err := client.ListPodSandbox(t.Context(), &runtimeapi.PodSandboxFilter{State: &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY}})
	require.NoError(t, err)
	names := []string{}
	for _, p := range all {
		names = append(names, p.Labels["io.kubernetes.pod.name"])
	}
	return names
}

// docs/migration.md, "From dockershim": Docker, behind cri-dockerd, is the primary, and containerd takes over pod by pod.
func TestDockersPodsGoOnWhileContainerdTakesOver(t *testing.T) {
	t.Parallel()
	if !*withDocker {
		fmt.Fprintln(os.Stderr, "outage: left out: Docker's pods, because building Docker takes long; make nightly runs them (-docker)")
		t.Skip("left out: only with -docker")
	}
	n := &node{lane: "docker", began: time.Now(), ctx: t.Context()}
	testbed.Require(t, build.Kubelet)
	reg := testbed.NewRegistry(t)
	n.two = testbed.NewContainerd(t, reg, runtimes.Config{Version: "2.4", Mirrors: map[string]string{registry: reg.Addr}})
	d := startDocker(t, reg, n.two)
	config := fmt.Sprintf("backends:\n- address: %s\n- name: %s\n  address: %s\n", d.socket(), two, n.two.Socket())
	n.proxy = testbed.NewProxy(t, config)
	n.kubelet = testbed.NewKubelet(t, kubelet.Config{Endpoint: n.proxy.Endpoint(), ExtraYAML: "crashLoopBackOff: {maxContainerRestartPeriod: 1s}\n"})
	full := func(name string) string { return name + "-" + n.kubelet.NodeName }
	onContainerd := func() []string { return podsOf(t, n.client(t, n.two)) }

	said := n.doctor(t, "")
	assert.Empty(t, said.texts("error", "warning"))
	assert.NotContains(t, strings.Join(said.texts("note"), "\n"), "cgroup driver", "cri-dockerd tells its own")

	old := kubelet.StaticPod("old", reg.Image("testbed/app:1"), "tick")
	n.run(t, old, plainPod())
	assert.Equal(t, []string{full("old")}, d.has(t))
	assert.Equal(t, []string{full("plain")}, onContainerd())
	works := func(pod string) {
		t.Helper()
		out, code, err := n.kubelet.Exec(t.Context(), pod, "app", "app", "print", "here")
		if assert.NoError(t, err) {
			assert.Equal(t, "here\n", out)
			assert.Zero(t, code)
		}
		log, err := n.kubelet.ContainerLog(t.Context(), pod, "app")
		if assert.NoError(t, err) {
			assert.Contains(t, log, "tick 1\n")
		}
	}
	works("old")
	works("plain")

	// criproxy reads the file again at once; new pods go to containerd.
	at := n.mark(t)
	require.NoError(t, os.WriteFile(filepath.Join(n.proxy.Dir, "criproxy.yaml"), []byte("newPodsTo: "+two+"\n"+config), 0o600))
	n.awaitProxy(t, at, 10*time.Second, "Reloaded the configuration")
	n.run(t, kubelet.StaticPod("new", image, "tick"))
	assert.Equal(t, []string{full("old")}, d.has(t))
	assert.ElementsMatch(t, []string{full("plain"), full("new")}, onContainerd())
	works("old")
	works("new")

	// A container on Docker that ends is restarted there.
	client, err := runtimes.Runtime(t.Context(), "unix://"+d.socket())
	require.NoError(t, err)
	defer client.Close(t.Context())
	all, err := client.ListContainers(t.Context(), nil)
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.NoError(t, client.StopContainer(t.Context(), all[0].Id, 0))
	_, err = n.kubelet.WaitRestarted(t.Context(), "old", 1)
	require.NoError(t, err)
	assert.Equal(t, []string{full("old")}, d.has(t))
	works("old")

	// It is drained.
	n.remove(t, "old")
	require.NoError(t, host.Poll(t.Context(), "Docker's last pod to end", func() bool { return len(d.has(t)) == 0 }))
	works("new")
	n.say("Docker is drained")
}
