package packages

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/internal/systemd"
)

// withKubelet puts files on a machine: those of the packages kubelet and kubeadm and of kubeadm join, our drop-in, and a
// script in place of kubelet. The units in enabled are started when the machine boots.
func withKubelet(t *testing.T, enabled ...string) func(dir string) {
	source, err := build.SourceDir()
	require.NoError(t, err)
	return func(dir string) {
		for to, from := range map[string]string{
			"usr/bin/kubelet":                                       "testdata/kubelet/kubelet",
			"etc/systemd/system/kubelet.service":                    "testdata/kubelet/kubelet.service",
			"etc/systemd/system/kubelet.service.d/10-kubeadm.conf":  "testdata/kubelet/10-kubeadm.conf",
			"etc/systemd/system/kubelet.service.d/20-criproxy.conf": filepath.Join(source, "../packaging/kubelet/20-criproxy.conf"),
		} {
			data, err := os.ReadFile(from)
			require.NoError(t, err)
			require.NoError(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(to)), 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(dir, to), data, 0o755))
		}
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "etc/default"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "etc/default/kubelet"), []byte("KUBELET_EXTRA_ARGS=\n"), 0o644))
		wants := filepath.Join(dir, "etc/systemd/system/multi-user.target.wants")
		require.NoError(t, os.MkdirAll(wants, 0o755))
		for _, unit := range enabled {
			at := "/usr/lib/systemd/system/"
			if unit == "kubelet.service" {
				at = "/etc/systemd/system/"
			}
			require.NoError(t, os.Symlink(at+unit, filepath.Join(wants, unit)))
		}
	}
}

// kubeletStarts returns the command line of each start of kubelet.
func kubeletStarts(m *systemd.Machine) (starts []string) {
	data, _ := os.ReadFile(m.At("/run/kubelet.log")) // missing until kubelet is started
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		starts = append(starts, lines[i]+": "+lines[i+1])
	}
	return starts
}

func TestKubeletStartsWhenCriproxyServesAndOutlivesIt(t *testing.T) {
	for _, enabled := range [][]string{
		{"kubelet.service", "criproxy.service"},
		{"kubelet.service", "criproxy.socket"},
		{"kubelet.service"}, // our drop-in makes it want criproxy
	} {
		t.Run(strings.Join(enabled, " "), func(t *testing.T) {
			m := boot(t, withKubelet(t, enabled...))
			m.Eventually("kubelet runs", func() bool { return len(kubeletStarts(m)) == 1 })
			const flags = "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf" +
				" --config=/var/lib/kubelet/config.yaml --container-runtime-endpoint=unix:///run/criproxy.sock"
			assert.Equal(t, []string{flags + ": criproxy serves"}, kubeletStarts(m))
			started := func(unit, property string) int {
				at, err := strconv.Atoi(m.Of(unit, property+"TimestampMonotonic"))
				require.NoError(t, err)
				return at
			}
			assert.Less(t, started("criproxy.service", "ActiveEnter"), started("kubelet.service", "ExecMainStart"))

			m.Run("systemctl", "restart", "criproxy.service")
			pid := m.Show("MainPID")
			m.Run("systemctl", "kill", "--kill-who=main", "-s", "USR2", "criproxy.service")
			m.Eventually("it has handed over", func() bool { return m.Show("MainPID") != pid })
			pid = m.Show("MainPID")
			m.Run("kill", "-9", pid)
			m.Eventually("it is started again", func() bool { return m.Show("MainPID") != pid && m.Show("SubState") == "running" })
			m.Run("systemctl", "stop", "criproxy.service")
			assert.Equal(t, "running", m.Of("kubelet.service", "SubState"))
			assert.Len(t, kubeletStarts(m), 1, "it was started again")

			m.Run("systemctl", "restart", "kubelet.service")
			m.Eventually("kubelet runs", func() bool { return len(kubeletStarts(m)) == 2 })
			assert.Equal(t, flags+": criproxy serves", kubeletStarts(m)[1], "it brings criproxy with it")
		})
	}
}

// The files of kubeadm join and of an administrator stay, and the endpoint is ours all the same.
func TestTheKubeletDropInSetsTheEndpointAndNothingElse(t *testing.T) {
	m := boot(t, withKubelet(t))
	require.NoError(t, os.MkdirAll(m.At("/var/lib/kubelet"), 0o755))
	require.NoError(t, os.WriteFile(m.At("/var/lib/kubelet/kubeadm-flags.env"),
		[]byte(`KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix:///run/containerd/containerd.sock --node-labels=a=b"`+"\n"), 0o644))
	require.NoError(t, os.WriteFile(m.At("/etc/default/kubelet"), []byte("KUBELET_EXTRA_ARGS=--node-ip=192.0.2.1\n"), 0o644))
	m.Run("systemctl", "start", "kubelet.service")
	m.Eventually("kubelet runs", func() bool { return len(kubeletStarts(m)) == 1 })
	started := kubeletStarts(m)[0]
	assert.Contains(t, started, " --node-labels=a=b --node-ip=192.0.2.1 ")
	endpoints := strings.Split(started, "--container-runtime-endpoint=")
	assert.Equal(t, "unix:///run/criproxy.sock: criproxy serves", endpoints[len(endpoints)-1])
}

// If criproxy cannot start, here because of a mistake in its configuration, kubelet must still start and restart:
// administrators learn of the problem from what kubelet reports about its runtime.
func TestKubeletStartsEvenIfCriproxyCannot(t *testing.T) {
	m := boot(t, withKubelet(t))
	require.NoError(t, os.WriteFile(m.At("/etc/criproxy/config.yaml"), []byte("listne: /run/criproxy.sock\n"), 0o644))
	m.Run("systemctl", "start", "kubelet.service")
	m.Eventually("kubelet runs", func() bool { return len(kubeletStarts(m)) == 1 })
	assert.Contains(t, kubeletStarts(m)[0], "criproxy does not serve")
}
