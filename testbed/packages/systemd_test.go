package packages

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/internal/systemd"
)

// boot starts a machine with the package installed; with may add files to its /usr and /etc before.
func boot(t testing.TB, with ...func(dir string)) *systemd.Machine {
	t.Helper()
	needs(t, "dpkg-deb", "unshare", "nsenter", "systemctl", "systemd-analyze")
	pkg := t.TempDir()
	out, err := host.Command(t.Context(), "dpkg-deb", "-x", file(t, 1, "deb"), pkg).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, os.MkdirAll(filepath.Join(pkg, "usr/local/bin"), 0o755))
	require.NoError(t, os.Symlink("/usr/bin/criproxy", filepath.Join(pkg, "usr/local/bin/criproxy"))) // the path in the predecessor's unit
	for _, add := range with {
		add(pkg)
	}
	return systemd.Boot(t, pkg)
}

func TestServiceKeepsItsSocketWhateverSystemdDoes(t *testing.T) {
	m := boot(t)
	m.Run("systemctl", "start", "criproxy.service")
	assert.Equal(t, "active", m.Show("ActiveState"))
	assert.Contains(t, m.Show("StatusText"), "Serving /run/criproxy.sock")
	socket, pid := m.Socket(), m.Show("MainPID")
	same := func(after string) {
		t.Helper()
		// systemctl reload does not wait for the process, which itself reports the beginning and the end of the reload.
		m.Eventually("it is active after "+after, func() bool { return m.Show("ActiveState") == "active" })
		assert.Equal(t, socket, m.Socket(), "%s: the socket is another one", after)
		assert.Equal(t, "2", m.Show("NFileDescriptorStore"), after)
		require.NoError(t, m.Dial(), after)
	}
	m.Run("systemctl", "reload", "criproxy.service")
	same("reload")
	assert.Equal(t, pid, m.Show("MainPID"))

	m.Run("systemctl", "restart", "criproxy.service")
	same("restart")
	assert.NotEqual(t, pid, m.Show("MainPID"))

	pid = m.Show("MainPID")
	m.Run("systemctl", "kill", "--kill-who=main", "-s", "USR2", "criproxy.service")
	m.Eventually("it has handed over", func() bool { return m.Show("MainPID") != pid })
	same("handover")

	pid = m.Show("MainPID")
	m.Run("kill", "-9", pid)
	require.NoError(t, m.Dial(), "clients wait for the next one")
	m.Eventually("it is started again", func() bool { return m.Show("MainPID") != pid && m.Show("SubState") == "running" })
	same("crash")

	m.Run("systemctl", "stop", "criproxy.service")
	assert.Equal(t, "inactive", m.Show("ActiveState"))
	assert.Error(t, m.Dial())
}

func TestASocketUnitStartsTheServiceForItsFirstClient(t *testing.T) {
	m := boot(t)
	m.Run("systemctl", "start", "criproxy.socket")
	assert.Equal(t, "inactive", m.Show("ActiveState"))
	socket := m.Socket()
	require.NoError(t, m.Dial())
	m.Eventually("it runs", func() bool { return m.Show("SubState") == "running" })
	assert.Equal(t, socket, m.Socket())
	m.Run("systemctl", "restart", "criproxy.service")
	assert.Equal(t, socket, m.Socket())
	require.NoError(t, m.Dial())
}

// The unit from the README of Mirantis CRI Proxy.
func TestUnitOfThePredecessorWorksUnchanged(t *testing.T) {
	m := boot(t)
	unit, err := os.ReadFile("testdata/mirantis.service")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(m.At("/etc/systemd/system/criproxy.service"), unit, 0o644))
	m.Run("systemctl", "daemon-reload")
	m.Run("systemctl", "enable", "criproxy")
	m.Run("systemctl", "start", "criproxy")
	m.Eventually("it listens", func() bool { return m.Dial() == nil })
	assert.Equal(t, "running", m.Show("SubState"))
	assert.Contains(t, m.Show("FragmentPath"), "/etc/systemd/system")
	m.Run("systemctl", "restart", "criproxy")
	m.Eventually("it listens again", func() bool { return m.Dial() == nil })
	assert.Equal(t, "0", m.Show("NRestarts"))
}

func TestSystemdAnalyzeAcceptsTheUnits(t *testing.T) {
	m := boot(t)
	out := m.Run("systemd-analyze", "verify", "criproxy.service", "criproxy.socket")
	assert.Empty(t, out, "it warns")
	// The exposure in tenths, as in docs/operations.md.
	m.Run("systemd-analyze", "security", "--offline=true", "--threshold=26", "/usr/lib/systemd/system/criproxy.service")
}
