package packages

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/internal/ownimage"
)

// The steps of the DaemonSet's container, on a machine with systemd.
func TestTheDaemonSetChangesNothingTwice(t *testing.T) {
	m := boot(t)
	image := t.TempDir()
	unpack := func(version int) { ownimage.Unpack(t, ownimage.Build(t, versions[version]), image) }
	config := filepath.Join(image, "etc/criproxy/config.yaml")
	try := func(args ...string) (string, error) {
		cmd := host.Command(t.Context(), filepath.Join(image, "usr/bin/criproxy-on-node"), args...)
		cmd.Env = append(os.Environ(), "NODE_PID="+strconv.Itoa(m.PID), "FROM="+image, "PROGRAM=/opt/criproxy", "ONCE=yes")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	put := func() string {
		out, err := try()
		require.NoError(t, err, out)
		return out
	}
	unpack(0)
	assert.Contains(t, put(), "/opt/criproxy is new")
	assert.Equal(t, "active", m.Show("ActiveState"))
	socket, pid := m.Socket(), m.Show("MainPID")
	assert.Contains(t, m.Run("/opt/criproxy", "version"), "criproxy "+versions[0])

	assert.NotContains(t, put(), "is new", "as when the pod is restarted")
	assert.Equal(t, pid, m.Show("MainPID"))

	unpack(1)
	put()
	m.Eventually("the new one serves", func() bool { return m.Show("MainPID") != pid })
	assert.Equal(t, socket, m.Socket())
	assert.Equal(t, "0", m.Show("NRestarts"))
	pid = m.Show("MainPID")
	notReady := func(why string) {
		t.Helper()
		out, err := try("ready")
		assert.Error(t, err)
		assert.Contains(t, out, why)
	}
	notReady("primary ") // is gone: this machine has no runtime
	m.Run("cp", "/opt/criproxy", "/opt/right")
	m.Run("sh", "-c", "echo other > /opt/other && mv /opt/other /opt/criproxy")
	notReady("the program that was installed does not serve")
	m.Run("mv", "/opt/right", "/opt/criproxy")

	text, err := os.ReadFile(config)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(config, append(text, "\nlistBudget: 3s\n"...), 0o644))
	put()
	m.Eventually("it is read again", func() bool { return strings.Contains(m.Run("/opt/criproxy", "status", "-o", "json"), `"reloads":1`) })
	assert.Equal(t, pid, m.Show("MainPID"))

	// Nothing of a configuration with mistakes reaches the node, where criproxy could not start with it.
	require.NoError(t, os.WriteFile(config, append(text, "\nlistBudgte: 3s\n"...), 0o644))
	out, err := try()
	require.Error(t, err)
	assert.Contains(t, out, `listBudgte: unknown key (did you mean "listBudget"?)`)
	kept, err := os.ReadFile(m.At("/etc/criproxy/config.yaml"))
	require.NoError(t, err)
	assert.Equal(t, string(text)+"\nlistBudget: 3s\n", string(kept))
	m.Run("sh", "-c", "echo 'listBudgte: 3s' >> /etc/criproxy/config.yaml")
	notReady("is not in use")
	require.NoError(t, os.WriteFile(m.At("/etc/criproxy/config.yaml"), kept, 0o644))
	m.Run("systemctl", "restart", "criproxy.service")
}

// manifests reads what kubectl apply -k packaging/kubernetes makes objects of.
func manifests(t *testing.T) (config string, namespace corev1.Namespace, set appsv1.DaemonSet) {
	t.Helper()
	source, err := build.SourceDir()
	require.NoError(t, err)
	folder := filepath.Join(source, "../packaging/kubernetes")
	data, err := os.ReadFile(filepath.Join(folder, "daemonset.yaml"))
	require.NoError(t, err)
	parts := strings.Split(string(data), "\n---\n")
	require.Len(t, parts, 2)
	for i, into := range []any{&namespace, &set} {
		require.NoError(t, yaml.UnmarshalStrict([]byte(parts[i]), into))
	}
	data, err = os.ReadFile(filepath.Join(folder, "config.yaml"))
	require.NoError(t, err)
	return string(data), namespace, set
}

func TestTheDaemonSetIsOne(t *testing.T) {
	_, namespace, set := manifests(t)
	assert.Equal(t, namespace.Name, set.Namespace)
	assert.Equal(t, set.Spec.Selector.MatchLabels, set.Spec.Template.Labels)
}
