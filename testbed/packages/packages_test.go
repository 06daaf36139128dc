package packages

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// installed are the installed files of a package.
var installed = []string{
	"/usr/bin/criproxy", "/etc/criproxy/config.yaml", "/usr/lib/systemd/system/criproxy.service", "/usr/lib/systemd/system/criproxy.socket",
	"/usr/share/doc/criproxy/README.md", "/usr/share/doc/criproxy/CHANGELOG.md", "/usr/share/doc/criproxy/copyright", "/usr/share/man/man8/criproxy.8",
	"/usr/share/doc/criproxy/examples/20-criproxy.conf",
	"/usr/share/doc/criproxy/examples/alerts.yaml",
	"/usr/share/doc/criproxy/examples/dashboard.json",
	"/usr/share/doc/criproxy/examples/fleet-dashboard.json",
	"/usr/share/doc/criproxy/examples/fleet-rules.yaml",
	"/usr/share/doc/criproxy/examples/node-problem-detector/criproxy-monitor.json",
	"/usr/share/doc/criproxy/examples/node-problem-detector/criproxy-monitor.sh",
	"/usr/share/doc/criproxy/docs/migration.md",
	"/usr/share/doc/criproxy/docs/profiles/csi.yaml",
}

// A manager is a package manager in a root folder.
type manager struct {
	ending                    string
	install, upgrade, removal func(r *root) string
}

func dpkg(r *root, args ...string) string {
	r.Helper()
	return r.run("dpkg", append([]string{"--root=" + r.dir, "--force-confold", "--log=" + r.at("/dpkg.log")}, args...)...)
}

func rpm(r *root, args ...string) string {
	r.Helper()
	return r.run("rpm", append([]string{"--root", r.dir, "--dbpath", "/var/lib/rpm", "--nodeps"}, args...)...)
}

func managers(t *testing.T) []manager {
	return []manager{
		{"deb",
			func(r *root) string { return dpkg(r, "-i", file(t, 0, "deb")) },
			func(r *root) string { return dpkg(r, "-i", file(t, 1, "deb")) },
			func(r *root) string { return dpkg(r, "-r", "criproxy") }},
		{"rpm",
			func(r *root) string { return rpm(r, "-i", file(t, 0, "rpm")) },
			func(r *root) string { return rpm(r, "-U", file(t, 1, "rpm")) },
			func(r *root) string { return rpm(r, "-e", "criproxy") }},
	}
}

func TestInstallingStartsNothingAndUpgradingHandsOver(t *testing.T) {
	needs(t, "dpkg", "rpm", "busybox")
	for _, m := range managers(t) {
		t.Run(m.ending, func(t *testing.T) {
			r := newRoot(t, true)
			said := m.install(r)
			assert.Contains(t, said, "changes nothing yet", "it says what to do")
			for _, path := range installed {
				assert.FileExists(t, r.at(path))
			}
			for _, call := range r.told() {
				assert.NotRegexp(t, "start|enable|kill", call)
			}

			r.start()
			before, err := r.serving()
			require.NoError(t, err)
			assert.Equal(t, versions[0], before.Version, "the version is stamped")
			inode, err := os.Stat(r.at("/run/criproxy.sock"))
			require.NoError(t, err)
			r.write("/etc/criproxy/config.yaml", r.read("/etc/criproxy/config.yaml")+"\nlistBudget: 3s\n")
			said = m.upgrade(r)
			assert.NotContains(t, said, "changes nothing yet")
			after := r.waitServing(func(v running) bool { return v.PID != before.PID })
			assert.Equal(t, versions[1], after.Version)
			same, err := os.Stat(r.at("/run/criproxy.sock"))
			require.NoError(t, err)
			assert.True(t, os.SameFile(inode, same), "the socket is still the same")
			assert.Contains(t, r.read("/etc/criproxy/config.yaml"), "listBudget: 3s", "what was written there stays")
			for _, call := range r.told() {
				assert.NotRegexp(t, "stop|restart|disable", call)
			}

			// Removing the package gives back a socket that criproxy has taken over.
			require.NoError(t, os.MkdirAll(r.at("/etc/containerd"), 0o755))
			r.write("/etc/containerd/config.toml", "version = 2\n")
			r.serveContainerd()
			r.run("chroot", r.dir, "/usr/bin/criproxy", "install", "-takeover", "/run/containerd/containerd.sock")
			assert.FileExists(t, r.at("/etc/containerd/criproxy.toml"))
			m.removal(r)
			told := r.told()
			assert.Contains(t, told, "disable --now criproxy.socket criproxy.service")
			assert.Contains(t, told, "restart containerd.service")
			assert.Equal(t, "version = 2\n", r.read("/etc/containerd/config.toml"))
			assert.NoFileExists(t, r.at("/usr/bin/criproxy"))
		})
	}
}

func TestPurgeLeavesNothing(t *testing.T) {
	needs(t, "dpkg", "busybox")
	r := newRoot(t, true)
	dpkg(r, "-i", file(t, 0, "deb"))
	for _, dir := range []string{"/var/lib/criproxy", "/var/log/criproxy"} {
		require.NoError(t, os.MkdirAll(r.at(dir), 0o700))
		r.write(dir+"/file", "written by a criproxy")
	}
	dpkg(r, "-r", "criproxy")
	assert.FileExists(t, r.at("/etc/criproxy/config.yaml"), "removed is not purged")
	assert.FileExists(t, r.at("/var/lib/criproxy/file"))
	dpkg(r, "-P", "criproxy")
	var left []string
	require.NoError(t, filepath.WalkDir(r.dir, func(path string, d os.DirEntry, err error) error {
		if path == r.at("/proc") {
			return filepath.SkipDir
		}
		if strings.Contains(d.Name(), "criproxy") {
			left = append(left, path)
		}
		return err
	}))
	assert.Empty(t, left)
}

// Programs that build machine images install into a folder where no process runs, and which may lack a shell.
func TestPackagesInstallWhereNothingRuns(t *testing.T) {
	needs(t, "dpkg", "rpm", "busybox")
	for _, m := range managers(t) {
		t.Run(m.ending, func(t *testing.T) {
			r := newRoot(t, false)
			m.install(r)
			m.upgrade(r)
			m.removal(r)
			assert.Equal(t, []string{""}, r.told(), "systemctl is not asked")
		})
	}
	t.Run("without a chroot", func(t *testing.T) {
		r := newRoot(t, true)
		dpkg(r, "--force-script-chrootless", "-i", file(t, 0, "deb"))
		dpkg(r, "--force-script-chrootless", "-i", file(t, 1, "deb"))
		require.NoError(t, os.MkdirAll(r.at("/var/lib/criproxy"), 0o700))
		dpkg(r, "--force-script-chrootless", "-P", "criproxy")
		assert.NoDirExists(t, r.at("/var/lib/criproxy"))
		assert.Equal(t, []string{""}, r.told(), "systemctl is not asked")
	})
}
