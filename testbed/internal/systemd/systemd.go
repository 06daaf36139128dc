// Package systemd boots this machine's systemd as the first process of new namespaces.
package systemd

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/testbed/host"
)

//go:embed boot.sh
var script string

// patience bounds how long a test waits for an event. It is longer than a handover may take, which is a minute.
const patience = 2 * time.Minute

// A Machine is a systemd that is the first process of its own namespaces. It ends with the test.
type Machine struct {
	testing.TB
	PID int // of systemd, in our namespace
}

// Boot starts a Machine. The files of a package, which are in a folder, are laid over this machine's /usr; /etc is the
// package's.
func Boot(t testing.TB, pkg string) *Machine {
	t.Helper()
	dir, err := os.MkdirTemp("", "systemd-")
	require.NoError(t, err)
	root := filepath.Join(dir, "root")
	require.NoError(t, os.Mkdir(root, 0o755))

	cgroup := "/sys/fs/cgroup"
	if _, err := os.Stat(cgroup + "/cgroup.procs"); err != nil {
		cgroup += "/systemd"
	}
	cgroup = filepath.Join(cgroup, filepath.Base(dir))
	require.NoError(t, os.Mkdir(cgroup, 0o755))
	var log bytes.Buffer
	cmd := exec.Command("sh", "-c", `echo $$ > "$0/cgroup.procs" && exec unshare -n -m -p -f -C -u -i --kill-child --propagation private sh -c "$@"`, cgroup, script, "sh", pkg, root)
	cmd.Stdout, cmd.Stderr = &log, &log
	require.NoError(t, cmd.Start())
	m := &Machine{TB: t}
	t.Cleanup(func() {
		if t.Failed() && m.PID != 0 {
			t.Logf("%s", m.log())
		}
		_ = cmd.Process.Kill() // kills the whole pid namespace
		_ = cmd.Wait()         // reports the kill
		if t.Failed() {
			t.Log(log.String())
		}
		m.Eventually("the cgroup is empty", func() bool { return removeGroups(cgroup) == nil })
		require.NoError(t, os.RemoveAll(dir))
	})
	m.Eventually("systemd answers", func() bool {
		children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", cmd.Process.Pid)) // empty at first
		m.PID, _ = strconv.Atoi(strings.TrimSpace(string(children)))
		return m.PID != 0 && m.In("systemctl", "show", "-p", "Version").Run() == nil
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

// At returns the path of a file of the machine in our namespace.
func (m *Machine) At(path string) string { return fmt.Sprintf("/proc/%d/root%s", m.PID, path) }

// In returns a command to run on the machine, which has not been started.
func (m *Machine) In(program string, args ...string) *exec.Cmd {
	// Not the test's context, which has ended during clean-up.
	return host.CommandWithin(context.Background(), patience, "nsenter", append([]string{"-t", strconv.Itoa(m.PID), "-m", "-p", "-n", "-u", "-i", program}, args...)...)
}

// Run runs a program on the machine. The test fails unless the program succeeds.
func (m *Machine) Run(program string, args ...string) string {
	m.Helper()
	out, err := m.In(program, args...).CombinedOutput()
	require.NoError(m, err, "%s %s\n%s", program, strings.Join(args, " "), out)
	return strings.TrimSpace(string(out))
}

// Show returns a property of criproxy's service.
func (m *Machine) Show(property string) string {
	m.Helper()
	return m.Of("criproxy.service", property)
}

// Of returns a property of a unit.
func (m *Machine) Of(unit, property string) string {
	m.Helper()
	return m.Run("systemctl", "show", "-p", property, "--value", unit)
}

// Eventually waits until a condition holds.
func (m *Machine) Eventually(what string, is func() bool) {
	m.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience) // the test's own has ended during clean-up
	defer cancel()
	err := host.Poll(ctx, what, is)
	require.NoError(m, err, "%s", m.log())
}

// log returns the end of what systemd and its services have said.
func (m *Machine) log() []byte {
	said, _ := os.ReadFile(m.At("/run/systemd.log")) // may not exist
	return said[max(0, len(said)-4000):]
}

// Socket identifies the file of kubelet's socket: it differs for a new file.
func (m *Machine) Socket() uint64 {
	m.Helper()
	info, err := os.Stat(m.At("/run/criproxy.sock"))
	require.NoError(m, err)
	return info.Sys().(*syscall.Stat_t).Ino
}

// Dial connects to kubelet's socket, and closes the connection.
func (m *Machine) Dial() error {
	conn, err := net.Dial("unix", m.At("/run/criproxy.sock"))
	if err == nil {
		conn.Close()
	}
	return err
}

// Relay makes a socket at a path of the machine that forwards to a socket outside of it.
func (m *Machine) Relay(path, to string) {
	m.Helper()
	path = m.At(path)
	require.NoError(m, os.MkdirAll(filepath.Dir(path), 0o755))
	listener, err := net.Listen("unix", path)
	require.NoError(m, err)
	m.Cleanup(func() { listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return // closed
			}
			go func() {
				defer client.Close()
				server, err := net.Dial("unix", to)
				if err != nil {
					return // the client sees it
				}
				go func() {
					_, _ = io.Copy(server, client) // until one end closes
					server.Close()
				}()
				_, _ = io.Copy(client, server)
			}()
		}
	}()
}
