package vm

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/observe/why"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/internal/support"
)

// The life of a node, from the first boot to a power cut. Each step depends on the one before.
func TestANodeLivesWithCriproxy(t *testing.T) {
	n := newNode(t)
	for _, step := range []struct {
		name string
		do   func(n *node)
	}{
		{"the machine is what nodes are", (*node).isANode},
		{"somebody follows the page of the first node, and goes back", (*node).followsThePage},
		{"the package of the previous release is installed", (*node).installs},
		{"a plugin runs in a pod", (*node).hasAPlugin},
		{"pods run on both runtimes", (*node).runsPods},
		{"an upgrade from the previous release under load", (*node).upgradesUnderLoad},
		{"the way back, and up again, without the second runtime", (*node).goesBackInAnOutage},
		{"a restart", (*node).restarts},
		{"a crash", (*node).crashes},
		{"the plugin is killed", (*node).losesThePlugin},
		{"a reboot", (*node).outlivesAReboot},
		{"it takes containerd's path", (*node).takesThePath},
		{"a power cut", (*node).outlivesAPowerCut},
		{"the package is removed", (*node).isRemoved},
	} {
		if !t.Run(step.name, func(t *testing.T) {
			n.TB = t
			began := time.Now()
			step.do(n)
			n.say("shown: %s, in %.0fs", step.name, time.Since(began).Seconds())
		}) {
			return // the machine's log is shown
		}
	}
	n.TB = t
	noted(t, n, "containerd "+support.Kernel(strings.Fields(n.run("containerd", "--version"))[2])+" of Debian")
}

// noted notes for docs/support.md what the test has passed with: kubelet and containerd 2.4 in the machine, and more.
func noted(t *testing.T, n *node, more ...string) {
	version, err := build.Version(build.Kubelet)
	require.NoError(t, err)
	support.On(t, support.Run{
		Kubelet:  support.Kernel(strings.TrimPrefix(version, "v")),
		Runtimes: append(more, "containerd 2.4"),
		Kernel:   support.Kernel(n.run("uname", "-r")), CGroup: "v2", Arch: "amd64",
	}, func(*support.Run) {})
}

func (n *node) isANode() {
	assert.Equal(n, "cgroup2fs", n.run("stat", "-f", "-c", "%T", "/sys/fs/cgroup"))
	controllers := strings.Fields(n.run("cat", "/sys/fs/cgroup/cgroup.controllers"))
	for _, c := range []string{"cpuset", "cpu", "io", "memory", "hugetlb", "pids"} {
		assert.Contains(n, controllers, c)
	}
	assert.Equal(n, "systemd", n.run("cat", "/proc/1/comm"))
	assert.Equal(n, "Y", n.run("cat", "/sys/module/apparmor/parameters/enabled"))
	capabilities := n.sh("grep CapEff /proc/self/status | cut -f2")
	assert.Regexp(n, "ffffffff$", capabilities, "it lacks capabilities, such as CAP_SYS_RESOURCE")
	assert.Equal(n, "active", n.show("containerd", "ActiveState"))

	n.sh(`cp -r /payload/root/. /
		mkdir -p /etc/kubernetes/manifests
		ln -s /payload/bin/kubelet /usr/bin/kubelet
		ln -s /payload/bin/crictl /usr/local/bin/crictl
		systemctl daemon-reload
		systemctl restart containerd
		systemctl enable --now two`)
	for _, image := range []string{"pause", "app"} {
		n.run("ctr", "-n", "k8s.io", "images", "import", "/payload/images/"+image+".tar")
		n.run("/payload/bin/containerd24/ctr", "-a", "/run/two/containerd.sock", "-n", "k8s.io", "images", "import", "/payload/images/"+image+".tar")
	}
}

// configuration is criproxy's configuration on this node. Its times suit a machine that may be emulated, where a list
// takes longer than the 2s after which a runtime counts as slow.
const configuration = `listen: /run/criproxy.sock
listBudget: 30s
goneAfter: 2m
backends:
- address: /run/containerd/containerd.sock
- name: ` + two + `
  address: /run/two/containerd.sock
`

func (n *node) installs() {
	said := n.run("dpkg", "-i", "/payload/deb/"+versions[0]+".deb")
	assert.Contains(n, said, "changes nothing yet")
	assert.Equal(n, "disabled", n.show("criproxy", "UnitFileState"))
	assert.Equal(n, "inactive", n.show("criproxy", "ActiveState"))

	// The remedy that the output names.
	n.run("criproxy", "check", "-config", "/etc/criproxy/config.yaml")
	n.write("/etc/criproxy/config.yaml", configuration)
	n.Log(n.run("criproxy", "check", "-config", "/etc/criproxy/config.yaml"))
	n.run("systemctl", "enable", "--now", "criproxy")
	assert.Equal(n, "active", n.show("criproxy", "ActiveState"))
	n.bothAreUp()
	n.run("systemctl", "enable", "--now", "watch")
	n.findsNothingWrong()
}

func (n *node) bothAreUp() {
	n.Helper()
	n.eventually("both runtimes to be up", func() error {
		report, err := n.status()
		for _, b := range report.Backends {
			if b.State != "up" {
				err = errors.Join(err, fmt.Errorf("%s is %s: %s", b.Name, b.State, b.Error))
			}
		}
		return err
	})
}

// findsNothingWrong runs doctor, which must find nothing worse than a note.
func (n *node) findsNothingWrong() {
	n.Helper()
	out, err := n.try("criproxy", "doctor", "-config", "/etc/criproxy/config.yaml", "-o", "json")
	var diagnosis struct{ Findings []why.Finding }
	require.NoError(n, json.Unmarshal([]byte(out), &diagnosis), out)
	n.Log(out)
	assert.NoError(n, err)
	for _, f := range diagnosis.Findings {
		assert.Equal(n, why.Note, f.Level, "%s: %s (%s)", f.About, f.Text, f.Cure)
	}
}
