package vm

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/testing/markdown"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/internal/junit"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

var (
	conformance = flag.Bool("conformance", false, "with -boot, run Kubernetes' own specs of nodes, which takes half an hour without KVM")
	// By default those that testbed/cluster cannot run on cgroup v1, in a namespace, with busybox's programs.
	specs = flag.String("specs", "Cgroup Manager|PodOverhead|Summary API|Device Plugin Failures|ContainerMetrics|ContainerLogPath|PrivilegedPod",
		"with -conformance, the specs whose names match this `REGEXP`")
	report = flag.String("report", "", "write what came of -conformance into `FILE`, docs/evidence/conformance.md")
)

// The kubelet that the suite starts has the machine for itself, with evictions that suit its disk.
const specKubelet = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: systemd
cgroupRoot: /
podCIDR: 10.100.0.0/24
volumeStatsAggPeriod: 10s
fileCheckFrequency: 10s
serializeImagePulls: false
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, nodefs.inodesFree: 1%}
`

// Kubernetes' own specs of nodes that need cgroup v2, or the machine for themselves, end through criproxy as they do with
// containerd itself.
func TestSpecsOfNodesPassAsTheyDoDirectly(t *testing.T) {
	if !*conformance {
		t.Skip("left out: only with -conformance")
	}
	n := newNode(t, specPayload)
	n.isANode()
	// The API server looks for the address of the default route. Nothing is sent there.
	n.sh("ip link add default0 type dummy; ip address add 198.18.9.1/24 dev default0; ip link set default0 up; ip route add default via 198.18.9.254")
	n.run("/payload/bin/containerd24/ctr", "-a", "/run/two/containerd.sock", "-n", "k8s.io", "images", "import", "/payload/images/specs.tar")
	n.run("dpkg", "-i", "/payload/deb/"+versions[1]+".deb")
	n.write("/etc/criproxy/config.yaml", `listen: /run/criproxy.sock
listBudget: 30s
goneAfter: 2m
backends:
- address: /run/two/containerd.sock
- name: one.vm
  address: /run/containerd/containerd.sock
`)
	n.run("systemctl", "enable", "--now", "criproxy")
	n.bothAreUp()
	n.write("/root/kubelet.yaml", specKubelet)

	compared := junit.Comparison{Columns: []string{"kubelet speaks to"}}
	direct := n.specs("/run/two/containerd.sock", *specs)
	through := n.specs("/run/criproxy.sock", *specs)
	if again := direct.PassedAndNot(through); len(again) > 0 { // some specs require two events within half a second
		n.Logf("again, by themselves: %q", again)
		for spec, is := range n.specs("/run/criproxy.sock", junit.Focus(again)) {
			through[spec] = is
		}
	}
	compared.Add(direct, nil, "containerd itself")
	compared.Add(through, direct, "criproxy, pods on the primary, prefixed ids")
	n.Log(compared.Table() + compared.Lists())
	assert.Positive(t, direct.Count(junit.Passed))
	for _, spec := range direct.PassedAndNot(through) {
		t.Errorf("%s: %s: %s", spec, through[spec], through[spec].Why)
	}
	if *report != "" {
		require.NoError(t, markdown.Between(*report, specsBegin, specsEnd, compared.Table()+compared.Lists()))
	}
	noted(t, n)
}

// The table is between these lines.
const (
	specsBegin = "<!-- specs of nodes on cgroup v2: made by make nightly -->\n"
	specsEnd   = "<!-- specs of nodes on cgroup v2: to here -->\n"
)

// specPayload adds Kubernetes' suite and its images.
func specPayload(t *testing.T, dir string) {
	binaries, err := build.Get(t.Context(), os.Stderr, build.App, build.E2ENode, build.Cluster)
	require.NoError(t, err)
	for to, from := range map[string]string{"e2e_node.test": binaries.E2ENode, "ginkgo": filepath.Join(binaries.Cluster, "ginkgo")} {
		require.NoError(t, command(t.Context(), "cp", from, filepath.Join(dir, "bin", to)))
	}
	reg, err := runtimes.StartRegistry(runtimes.RegistryConfig{App: binaries.App})
	require.NoError(t, err)
	defer reg.Close()
	require.NoError(t, reg.PushE2ENode(binaries.Cluster))
	from, err := name.NewRegistry(reg.Addr, name.Insecure)
	require.NoError(t, err)
	repositories, err := remote.Catalog(t.Context(), from)
	require.NoError(t, err)
	images := map[name.Reference]v1.Image{}
	for _, repository := range repositories {
		tags, err := remote.List(from.Repo(repository))
		require.NoError(t, err)
		for _, tag := range tags {
			content, err := remote.Image(from.Repo(repository).Tag(tag))
			require.NoError(t, err)
			as, err := name.NewTag("registry.k8s.io/" + repository + ":" + tag)
			require.NoError(t, err)
			images[as] = content
		}
	}
	require.NoError(t, tarball.MultiRefWriteToFile(filepath.Join(dir, "images/specs.tar"), images))
}

// specs runs the specs whose names match focus. The suite starts etcd, an API server and a kubelet that speaks to the
// runtime at socket.
func (n *node) specs(socket, focus string) junit.Outcomes {
	n.Helper()
	began := time.Now()
	n.say("specs on %s", socket)
	ctx, cancel := context.WithTimeout(n.Context(), time.Hour)
	defer cancel()
	_, err := n.Run(ctx, "sh", "-ec", `crictl -r unix:///run/two/containerd.sock -t 1m rmp -fa >&2
		rm -rf /var/lib/specs /var/lib/kubelet/* 2>/dev/null || true
		mkdir -p /var/lib/specs/out
		cd /var/lib/specs
		cp /payload/bin/e2e_node.test /payload/bin/kubelet .
		/payload/bin/ginkgo -procs=3 -no-color -timeout=55m -focus="$2" -label-filter='NodeConformance && !Serial && !Slow && !Disruptive && !Flaky' \
			-output-dir=/var/lib/specs/out -junit-report=junit.xml ./e2e_node.test -- \
			--server-start-timeout=15m --prepull-images=false --k8s-bin-dir=/var/lib/specs --kubelet-config-file=/root/kubelet.yaml --report-dir=/var/lib/specs/out \
			--container-runtime-endpoint="unix://$1" --kubelet-flags="--containerd=$1 --runtime-cgroups=/system.slice/two.service" > out/log 2>&1 || true
		test -s out/junit.xml || { tail -n 60 out/log >&2; exit 1; }`, "sh", socket, focus)
	if err != nil {
		said, _ := n.try("sh", "-c", "cd /var/lib/specs/out; tail -n 40 services.log kubelet.log")
		require.NoError(n, err, said)
	}
	log := n.run("tail", "-c", "200000", "/var/lib/specs/out/log")
	kept := filepath.Join(os.TempDir(), "vm-specs-"+filepath.Base(filepath.Dir(socket))+".log")
	require.NoError(n, os.WriteFile(kept, []byte(log), 0o644))
	file := filepath.Join(n.TempDir(), "junit.xml")
	require.NoError(n, os.WriteFile(file, []byte(n.run("cat", "/var/lib/specs/out/junit.xml")), 0o644))
	outcomes, err := junit.Read(file)
	require.NoError(n, err)
	require.NotEmpty(n, outcomes, "the suite ran no spec: see %s", kept)
	n.say("%d specs passed, %d failed, in %.0fs; %s", outcomes.Count(junit.Passed), outcomes.Count(junit.Failed), time.Since(began).Seconds(), kept)
	return outcomes
}
