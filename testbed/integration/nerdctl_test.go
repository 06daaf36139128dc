package integration

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// A nerdctl runs nerdctl for one containerd. nerdctl keeps its state on disk by the path of the socket, so tests always
// give it the same path.
type nerdctl struct {
	testing.TB
	*runtimes.Containerd
	program, socket string
	dir, image      string
}

func newNerdctl(t testing.TB, c *runtimes.Containerd, reg *runtimes.Registry, dir string) *nerdctl {
	t.Helper()
	return &nerdctl{TB: t, Containerd: c, program: testbed.Require(t, build.Nerdctl).Nerdctl, dir: filepath.Join(dir, "nerdctl"), socket: c.Socket(), image: reg.Image("testbed/app:1")}
}

func (n *nerdctl) try(args ...string) result {
	n.Helper()
	return command(n, n.program, append([]string{
		"--address", n.socket, "--namespace", "k8s.io", "--insecure-registry", "--snapshotter", n.Snapshotter, "--cgroup-manager", "cgroupfs",
		"--data-root", n.dir, "--cni-path", n.Binaries.CNI, "--cni-netconfpath", filepath.Join(n.dir, "cni"),
	}, args...)...)
}

// do runs nerdctl, which must succeed, and returns its output.
func (n *nerdctl) do(args ...string) string {
	n.Helper()
	r := n.try(args...)
	require.Zero(n, r.code, "nerdctl %s: %s%s", strings.Join(args, " "), r.stdout, r.stderr)
	return r.stdout
}

// run creates a container that runs the test program with args. It has no network, because nerdctl's needs iptables.
func (n *nerdctl) run(flags, args []string) result {
	n.Helper()
	flags = append([]string{"run", "--net", "none", "--cgroup-parent", n.CgroupParent(), "--security-opt", "seccomp=unconfined"}, flags...)
	return n.try(append(append(flags, n.image), args...)...)
}

// start makes a container that counts in its log, if it has one, until it is stopped.
func (n *nerdctl) start(name string, flags ...string) {
	n.Helper()
	r := n.run(append([]string{"-d", "--name", name}, flags...), []string{"tick"})
	require.Zero(n, r.code, r.stderr)
}

// pid is the process of a container.
func (n *nerdctl) pid(name string) string {
	n.Helper()
	return strings.TrimSpace(n.do("inspect", "--format", "{{.State.Pid}}", name))
}

// lives does what users do with a running container.
func (n *nerdctl) lives(name string) {
	n.Helper()
	assert.Contains(n, n.do("ps", "--format", "{{.Names}} {{.Status}}"), name+" Up")
	eventually(n, func() error { // on a busy machine nerdctl may end before it has copied the output of a short process
		if said := n.do("exec", name, "app", "print", "here"); said != "here\n" {
			return fmt.Errorf("nerdctl exec printed %q", said)
		}
		return nil
	})
	assert.Contains(n, n.do("top", name), "/bin/app tick")
}

// says checks the log of a running container.
func (n *nerdctl) says(name string) {
	n.Helper()
	// The container goes on counting, so its log is still written.
	said := strings.Count(n.do("logs", name), "tick ")
	eventually(n, func() error {
		if now := strings.Count(n.do("logs", name), "tick "); now <= said {
			return fmt.Errorf("its log still has %d lines", now)
		}
		return nil
	})
}

// wholeLife does what users do with a container from beginning to end, and with its image.
func (n *nerdctl) wholeLife() {
	n.Helper()
	n.do("pull", "-q", n.image)
	assert.Contains(n, n.do("images", "--format", "{{.Repository}}:{{.Tag}}"), n.image+"\n")
	said := n.run([]string{"--rm"}, []string{"print", "hello", "then", "exit", "7"})
	assert.Equal(n, "hello\n", said.stdout, said.stderr)
	assert.Equal(n, 7, said.code)
	n.start("guest")
	n.lives("guest")
	n.says("guest")
	assert.NotZero(n, n.try("exec", "guest", "app", "exit", "7").code)
	n.do("stop", "-t", "1", "guest")
	n.do("start", "guest")
	n.says("guest")
	n.do("commit", "guest", "committed:1")
	n.do("rmi", "committed:1")
	n.do("rm", "-f", "guest")
	assert.NotContains(n, n.do("ps", "-a", "--format", "{{.Names}}"), "guest\n")
}
