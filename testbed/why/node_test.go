package why_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/internal/plane"
	"github.com/criproxy/criproxy/testbed/kubelet"
	"github.com/criproxy/criproxy/testbed/proxy"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

var (
	record   = flag.String("record", "", "the folder to which recordings of the faults are written")
	reportTo = flag.String("report", "", "the document into which the tables of a set are written")
	actsOnly = flag.Bool("acts", false, "of a set, only what is done: why is not asked")
)

func TestMain(m *testing.M) {
	klog.SetLogger(klog.Logger{}) // silence: containers may vanish during calls about them
	testbed.Main(m, append(build.ForContainers(), build.Kubelet, build.Cluster, build.CRIO)...)
}

const (
	old      = "old.io" // the second runtime's name
	registry = "registry.test"
	image    = registry + "/testbed/app:1"
)

// A node is a kubelet on criproxy in front of a containerd in which faults can be made.
type node struct {
	began    time.Time
	cni      string // the folder with the CNI plugin's faults
	registry *runtimes.Registry
	runtime  *runtimes.Containerd
	second   *runtimes.Containerd // nil without one
	pods     int                  // at its start; for messages
	relay    testbed.Slowness
	yaml     string // criproxy's configuration, up to the runtime's address
	proxy    *proxy.Proxy
	kubelet  *kubelet.Kubelet
	plane    *plane.Plane // nil without an API server
}

// A setup says how the parts of a node are configured. The zero value is a containerd 2.4 behind a relay.
type setup struct {
	version           string // of containerd; empty means "2.4"
	criproxy, kubelet string // their YAML
	toml              string // of containerd
	direct            bool   // criproxy speaks to containerd itself, not to a relay
	second            bool   // there is another runtime, a containerd 1.7 with the name old
	recorder          int    // its size in bytes; 0 means 64 MiB
	relay             []grpc.StreamServerInterceptor
	api               bool // kubelet is a node of an API server
}

func newNode(t *testing.T, s setup) *node {
	t.Helper()
	n := &node{began: time.Now(), cni: t.TempDir()}
	bin := testbed.Require(t, append(build.ForContainers(), build.Kubelet)...)
	n.registry = testbed.NewRegistry(t)
	mirrors := map[string]string{registry: n.registry.Addr}
	n.fakeCNI(t, bin.CNI)
	if s.version == "" {
		s.toml += fmt.Sprintf(`
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = [%q, %q]
`, n.cni, bin.CNI)
	}
	n.runtime = testbed.NewContainerd(t, n.registry, runtimes.Config{Version: s.version, Mirrors: mirrors, ExtraTOML: s.toml})
	socket := n.runtime.Socket()
	if !s.direct {
		socket = testbed.NewRelay(t, socket, append(s.relay, n.relay.Intercept)...)
	}
	n.yaml = fmt.Sprintf("flightRecorder: %d\n%sbackends:\n- address: ", cmp.Or(s.recorder, 64<<20), s.criproxy)
	other := ""
	if s.second {
		n.second = testbed.NewContainerd(t, n.registry, runtimes.Config{Version: "1.7", Mirrors: mirrors})
		other = "- name: " + old + "\n  address: " + n.second.Socket() + "\n"
	}
	n.proxy = testbed.NewProxy(t, n.yaml+socket+"\n"+other)
	config := kubelet.Config{Endpoint: n.proxy.Endpoint(), ExtraYAML: s.kubelet}
	if s.api {
		n.plane = plane.New(t)
		bridge, err := net.InterfaceByName(n.runtime.Bridge())
		require.NoError(t, err)
		addresses, err := bridge.Addrs()
		require.NoError(t, err)
		config.Kubeconfig, config.Address = n.plane.Kubeconfig, addresses[0].(*net.IPNet).IP.String()
		config.NodeName = config.Address
	}
	n.kubelet = testbed.NewKubelet(t, config)
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

// run adds pods, and returns when all run. Thirty of them at once take minutes.
func (n *node) run(t *testing.T, pods ...*corev1.Pod) {
	t.Helper()
	for _, pod := range pods {
		require.NoError(t, n.kubelet.AddManifest(pod))
	}
	ctx, stop := context.WithTimeout(t.Context(), 4*time.Minute)
	defer stop()
	for _, pod := range pods {
		_, err := n.kubelet.WaitRunning(ctx, pod.Name)
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

// dump returns what criproxy has recorded, as JSON lines.
func (n *node) dump(ctx context.Context) ([]byte, error) {
	return host.Command(ctx, n.proxy.Program, "dump", "-admin", n.proxy.Admin()).Output()
}

// save writes the calls that began after a time to a file, if -record names a folder: their messages as bytes, which
// are shorter than their text.
func (n *node) save(t *testing.T, name string, since time.Time) {
	t.Helper()
	if *record == "" {
		return
	}
	all, err := n.dump(t.Context())
	require.NoError(t, err)
	file, err := os.Create(filepath.Join(*record, name+".jsonl.zst"))
	require.NoError(t, err)
	defer file.Close()
	zip, err := zstd.NewWriter(file, zstd.WithEncoderLevel(zstd.SpeedBestCompression))
	require.NoError(t, err)
	began := map[any]bool{}
	for line := range bytes.Lines(all) {
		var one map[string]any
		numbers := json.NewDecoder(bytes.NewReader(line))
		numbers.UseNumber()
		require.NoError(t, numbers.Decode(&one))
		at, _ := time.Parse(time.RFC3339Nano, fmt.Sprint(one["time"]))
		switch {
		case one["kind"] == "file":
		case at.Before(since), one["kind"] == "missed":
			continue
		case one["kind"] == "start":
			began[one["call"]] = true
		case one["kind"] != "change" && !began[one["call"]]:
			continue
		}
		delete(one, "message")
		delete(one, "seq")
		if one["metadata"] != nil && one["kind"] != "header" {
			delete(one, "metadata")
		}
		require.NoError(t, json.NewEncoder(zip).Encode(one))
	}
	require.NoError(t, zip.Close())
	n.say("recorded %s", file.Name())
}

// A finding is a finding of criproxy why.
type finding struct {
	Rule, Text, Cause, Level string
	Over                     bool
}

// why runs the real criproxy why about the time since a fault was made.
func (n *node) why(t *testing.T, since time.Time) []finding {
	t.Helper()
	found, problem := n.ask(t, "-since", (time.Since(since) + 3*time.Second).String()) // it takes a moment to start
	require.Empty(t, problem)
	return found
}

// ask runs the real criproxy why with arguments. If why could not look, problem says so.
func (n *node) ask(t *testing.T, args ...string) (found []finding, problem string) {
	t.Helper()
	cmd := host.Command(t.Context(), n.proxy.Program, append([]string{"why", "-o", "json", "-admin", n.proxy.Admin()}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, _ := cmd.Output() // it fails if something is wrong now
	var report struct{ Findings []finding }
	if cmd.ProcessState.ExitCode() > 1 || json.Unmarshal(out, &report) != nil {
		return nil, "it could not look: " + stderr.String()
	}
	assert.Equal(t, slices.ContainsFunc(report.Findings, finding.lasts), cmd.ProcessState.ExitCode() == 1, "%v", report.Findings)
	return report.Findings, ""
}

func (f finding) sentence() string { return f.Text + "; probably: " + f.Cause }

// lasts reports whether a finding makes why fail.
func (f finding) lasts() bool { return !f.Over && f.Level != "note" }

// A step is what a test does so long after it has begun.
type step struct {
	at time.Duration
	do func()
}

// follow does one step after the other. If one comes late, all later ones are as much later: the time between two never shrinks.
func follow(steps []step) {
	began := time.Now()
	slices.SortStableFunc(steps, func(a, b step) int { return cmp.Compare(a.at, b.at) })
	for _, s := range steps {
		wait := time.Until(began.Add(s.at))
		time.Sleep(wait)
		began = began.Add(max(0, -wait))
		s.do()
	}
}

// onSecond returns a pod for the second runtime.
func onSecond(p *corev1.Pod, image string) *corev1.Pod {
	p.Annotations["kubernetes.io/target-runtime"] = old
	p.Spec.Containers[0].Image = old + "/" + registry + "/" + image
	return p
}

// probed returns a pod with an exec probe that runs the program app.
func probed(p *corev1.Pod, args ...string) *corev1.Pod {
	p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: append([]string{"app"}, args...)}}}
	return p
}

func graceful(p *corev1.Pod, seconds int64) *corev1.Pod {
	p.Spec.TerminationGracePeriodSeconds = &seconds
	return p
}
