package why_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/kubelet"
	"github.com/criproxy/criproxy/testbed/proxy"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

var record = flag.String("record", "", "the folder to which recordings of the faults are written")

func TestMain(m *testing.M) {
	klog.SetLogger(klog.Logger{}) // silence: containers may vanish during calls about them
	testbed.Main(m, append(build.ForContainers(), build.Kubelet)...)
}

const (
	registry = "registry.test"
	image    = registry + "/testbed/app:1"
)

// A node is a kubelet on criproxy in front of a containerd in which faults can be made.
type node struct {
	began   time.Time
	cni     string // the folder with the CNI plugin's faults
	runtime *runtimes.Containerd
	relay   testbed.Slowness
	proxy   *proxy.Proxy
	kubelet *kubelet.Kubelet
}

func newNode(t *testing.T, criproxyYAML, kubeletYAML string) *node {
	t.Helper()
	n := &node{began: time.Now(), cni: t.TempDir()}
	bin := testbed.Require(t, append(build.ForContainers(), build.Kubelet)...)
	reg := testbed.NewRegistry(t)
	mirrors := map[string]string{registry: reg.Addr}
	n.fakeCNI(t, bin.CNI)
	n.runtime = testbed.NewContainerd(t, reg, runtimes.Config{Version: "2.4", Mirrors: mirrors, ExtraTOML: fmt.Sprintf(`
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = [%q, %q]
`, n.cni, bin.CNI)})
	yaml := "backends:\n- address: " + testbed.NewRelay(t, n.runtime.Socket(), n.relay.Intercept) + "\n"
	n.proxy = testbed.NewProxy(t, criproxyYAML+yaml)
	n.kubelet = testbed.NewKubelet(t, kubelet.Config{Endpoint: n.proxy.Endpoint(), ExtraYAML: kubeletYAML})
	return n
}

// fakeCNI makes a plugin that does what the file COMMAND-POD says, before it calls the real one.
func (n *node) fakeCNI(t *testing.T, real string) {
	script := fmt.Sprintf(`#!/bin/sh
pod=${CNI_ARGS##*K8S_POD_NAME=}; pod=${pod%%%%;*}; pod=${pod%%-node-*}
[ -e %[1]s/$CNI_COMMAND-$pod ] && . %[1]s/$CNI_COMMAND-$pod
exec %[2]s/bridge
`, n.cni, real)
	require.NoError(t, os.WriteFile(filepath.Join(n.cni, "bridge"), []byte(script), 0o755))
}

// onCNI runs a line of shell at each command (ADD or DEL) for a pod, until undone.
func (n *node) onCNI(t *testing.T, command, pod, line string) (undo func()) {
	file := filepath.Join(n.cni, command+"-"+pod)
	require.NoError(t, os.WriteFile(file, []byte(line+"\n"), 0o644))
	return func() { require.NoError(t, os.RemoveAll(file)) }
}

func (n *node) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "why %4.0fs  %s\n", time.Since(n.began).Seconds(), fmt.Sprintf(format, args...))
}

func (n *node) run(t *testing.T, pods ...*corev1.Pod) {
	t.Helper()
	for _, pod := range pods {
		require.NoError(t, n.kubelet.AddManifest(pod))
	}
	for _, pod := range pods {
		_, err := n.kubelet.WaitRunning(t.Context(), pod.Name)
		require.NoError(t, err)
	}
}

// pod returns a pod on the primary.
func pod(name string, args ...string) *corev1.Pod {
	p := kubelet.StaticPod(name, image, args...)
	p.Spec.Containers[0].ImagePullPolicy = corev1.PullIfNotPresent
	short := int64(1)
	p.Spec.TerminationGracePeriodSeconds = &short
	return p
}

// save writes the recorded calls to a file, if -record names a folder.
func (n *node) save(t *testing.T, name string) {
	t.Helper()
	if *record == "" {
		return
	}
	file := filepath.Join(*record, name+".jsonl")
	require.NoError(t, os.RemoveAll(file))
	require.NoError(t, exec.CommandContext(t.Context(), n.proxy.Program, "dump", "-admin", n.proxy.Admin(), file).Run())
	n.say("recorded %s", file)
}

// A finding is a finding of criproxy why.
type finding struct{ Rule, Text string }

// why runs the real criproxy why about the time since a fault was made.
func (n *node) why(t *testing.T, since time.Time) []finding {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), n.proxy.Program, "why", "-o", "json", "-admin", n.proxy.Admin(), "-since", time.Since(since).String())
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run() // it fails when it finds something
	var report struct{ Findings []finding }
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &report), "%s%s", &stdout, &stderr)
	if len(report.Findings) > 0 {
		assert.Equal(t, 1, cmd.ProcessState.ExitCode())
	}
	return report.Findings
}
