package packages

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/testbed/host"
)

// A machine is a systemd that is the first process of its own namespaces, with the package installed.
type machine struct {
	testing.TB
	pid int // of systemd
}

// boot starts one; with may add files to its /usr and /etc before.
func boot(t testing.TB, with ...func(dir string)) *machine {
	t.Helper()
	needs(t, "dpkg-deb", "unshare", "nsenter", "systemctl", "systemd-analyze")
	deb := file(t, 1, "deb")
	dir, err := os.MkdirTemp("", "systemd-")
	require.NoError(t, err)
	pkg, root := filepath.Join(dir, "package"), filepath.Join(dir, "root")
	require.NoError(t, os.Mkdir(root, 0o755))
	out, err := exec.Command("dpkg-deb", "-x", deb, pkg).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, os.MkdirAll(filepath.Join(pkg, "usr/local/bin"), 0o755))
	require.NoError(t, os.Symlink("/usr/bin/criproxy", filepath.Join(pkg, "usr/local/bin/criproxy"))) // where the predecessor's unit has it
	for _, add := range with {
		add(pkg)
	}

	cgroup := "/sys/fs/cgroup"
	if _, err := os.Stat(cgroup + "/cgroup.procs"); err != nil {
		cgroup += "/systemd"
	}
	cgroup = filepath.Join(cgroup, filepath.Base(dir))
	require.NoError(t, os.Mkdir(cgroup, 0o755))
	script, err := filepath.Abs("testdata/boot.sh")
	require.NoError(t, err)
	var log bytes.Buffer
	cmd := exec.Command("sh", "-c", `echo $$ > "$0/cgroup.procs" && exec unshare -n -m -p -f -C -u -i --kill-child --propagation private sh "$@"`, cgroup, script, pkg, root)
	cmd.Stdout, cmd.Stderr = &log, &log
	require.NoError(t, cmd.Start())
	m := &machine{TB: t}
	t.Cleanup(func() {
		if t.Failed() && m.pid != 0 {
			said, _ := os.ReadFile(m.at("/run/systemd.log")) // as far as there is one
			t.Logf("%s", said)
		}
		_ = cmd.Process.Kill() // and with it all of the namespace
		_ = cmd.Wait()         // which says that it was killed
		if t.Failed() {
			t.Log(log.String())
		}
		m.eventually("the cgroup is empty", func() bool { return removeGroups(cgroup) == nil })
		require.NoError(t, os.RemoveAll(dir))
	})
	m.eventually("systemd answers", func() bool {
		children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", cmd.Process.Pid)) // empty at first
		m.pid, _ = strconv.Atoi(strings.TrimSpace(string(children)))
		return m.pid != 0 && m.in("systemctl", "show", "-p", "Version").Run() == nil
	})
	return m
}

// removeGroups removes a cgroup and those below it.
func removeGroups(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeGroups(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return os.Remove(dir)
}

// at is a path of the machine as seen from here.
func (m *machine) at(path string) string { return fmt.Sprintf("/proc/%d/root%s", m.pid, path) }

func (m *machine) in(program string, args ...string) *exec.Cmd {
	cmd := exec.Command("nsenter", append([]string{"-t", strconv.Itoa(m.pid), "-m", "-p", "-n", "-u", "-i", program}, args...)...)
	cmd.WaitDelay = time.Second
	return cmd
}

// run runs a program on the machine, which must succeed.
func (m *machine) run(program string, args ...string) string {
	m.Helper()
	out, err := m.in(program, args...).CombinedOutput()
	require.NoError(m, err, "%s %s\n%s", program, strings.Join(args, " "), out)
	return strings.TrimSpace(string(out))
}

// show returns a property of the service.
func (m *machine) show(property string) string {
	return m.run("systemctl", "show", "-p", property, "--value", "criproxy.service")
}

func (m *machine) eventually(what string, is func() bool) {
	m.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience) // also in a clean-up, when the test's own has ended
	defer cancel()
	require.NoError(m, host.Poll(ctx, what, is))
}

// socket tells the file at kubelet's socket from any other.
func (m *machine) socket() uint64 {
	m.Helper()
	info, err := os.Stat(m.at("/run/criproxy.sock"))
	require.NoError(m, err)
	return info.Sys().(*syscall.Stat_t).Ino
}

func (m *machine) dial() error {
	conn, err := net.Dial("unix", m.at("/run/criproxy.sock"))
	if err == nil {
		conn.Close()
	}
	return err
}

func TestServiceKeepsItsSocketWhateverSystemdDoes(t *testing.T) {
	m := boot(t)
	m.run("systemctl", "start", "criproxy.service")
	assert.Equal(t, "active", m.show("ActiveState"))
	assert.Contains(t, m.show("StatusText"), "Serving /run/criproxy.sock")
	socket, pid := m.socket(), m.show("MainPID")
	same := func(after string) {
		t.Helper()
		// systemctl reload does not wait for the process, which says itself when it begins and when it is done.
		m.eventually("it is active after "+after, func() bool { return m.show("ActiveState") == "active" })
		assert.Equal(t, socket, m.socket(), "%s: the socket is another one", after)
		assert.Equal(t, "2", m.show("NFileDescriptorStore"), after)
		require.NoError(t, m.dial(), after)
	}
	m.run("systemctl", "reload", "criproxy.service")
	same("reload")
	assert.Equal(t, pid, m.show("MainPID"))

	m.run("systemctl", "restart", "criproxy.service")
	same("restart")
	assert.NotEqual(t, pid, m.show("MainPID"))

	pid = m.show("MainPID")
	m.run("systemctl", "kill", "--kill-who=main", "-s", "USR2", "criproxy.service")
	m.eventually("it has handed over", func() bool { return m.show("MainPID") != pid })
	same("handover")

	pid = m.show("MainPID")
	m.run("kill", "-9", pid)
	require.NoError(t, m.dial(), "clients wait for the next one")
	m.eventually("it is started again", func() bool { return m.show("MainPID") != pid && m.show("SubState") == "running" })
	same("crash")

	m.run("systemctl", "stop", "criproxy.service")
	assert.Equal(t, "inactive", m.show("ActiveState"))
	assert.Error(t, m.dial())
}

func TestASocketUnitStartsTheServiceForItsFirstClient(t *testing.T) {
	m := boot(t)
	m.run("systemctl", "start", "criproxy.socket")
	assert.Equal(t, "inactive", m.show("ActiveState"))
	socket := m.socket()
	require.NoError(t, m.dial())
	m.eventually("it runs", func() bool { return m.show("SubState") == "running" })
	assert.Equal(t, socket, m.socket())
	m.run("systemctl", "restart", "criproxy.service")
	assert.Equal(t, socket, m.socket())
	require.NoError(t, m.dial())
}

// The unit that README of Mirantis CRI Proxy told people to write.
func TestUnitOfThePredecessorWorksUnchanged(t *testing.T) {
	m := boot(t)
	unit, err := os.ReadFile("testdata/mirantis.service")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(m.at("/etc/systemd/system/criproxy.service"), unit, 0o644))
	m.run("systemctl", "daemon-reload")
	m.run("systemctl", "enable", "criproxy")
	m.run("systemctl", "start", "criproxy")
	m.eventually("it listens", func() bool { return m.dial() == nil })
	assert.Equal(t, "running", m.show("SubState"))
	assert.Contains(t, m.show("FragmentPath"), "/etc/systemd/system")
	m.run("systemctl", "restart", "criproxy")
	m.eventually("it listens again", func() bool { return m.dial() == nil })
	assert.Equal(t, "0", m.show("NRestarts"))
}

func TestSystemdAnalyzeAcceptsTheUnits(t *testing.T) {
	m := boot(t)
	out := m.run("systemd-analyze", "verify", "criproxy.service", "criproxy.socket")
	assert.Empty(t, out, "it warns")
	// Exposure in tenths, as docs/operations.md has it.
	m.run("systemd-analyze", "security", "--offline=true", "--threshold=26", "/usr/lib/systemd/system/criproxy.service")
}
