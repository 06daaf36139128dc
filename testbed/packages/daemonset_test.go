package packages

import (
	"os"
	"os/exec"
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
)

// The steps of the DaemonSet's container, on a machine with systemd.
func TestTheDaemonSetChangesNothingTwice(t *testing.T) {
	m := boot(t)
	image := t.TempDir()
	unpack := func(version int) {
		out, err := exec.Command("dpkg-deb", "-x", file(t, version, "deb"), image).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	config := filepath.Join(image, "etc/criproxy/config.yaml")
	source, err := build.SourceDir()
	require.NoError(t, err)
	try := func() (string, error) {
		cmd := exec.Command("sh", filepath.Join(source, "../packaging/container/on-node.sh"))
		cmd.Env = append(os.Environ(), "NODE_PID="+strconv.Itoa(m.PID), "FROM="+image, "CONFIG="+config, "PROGRAM=/opt/criproxy", "ONCE=yes")
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

	text, err := os.ReadFile(config)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(config, append(text, "\nlistBudget: 3s\n"...), 0o644))
	put()
	m.Eventually("it is read again", func() bool { return strings.Contains(m.Run("/opt/criproxy", "status", "-o", "json"), `"reloads":1`) })
	assert.Equal(t, pid, m.Show("MainPID"))

	// A configuration with mistakes never reaches the node, where criproxy could not start with it.
	require.NoError(t, os.WriteFile(config, append(text, "\nlistBudgte: 3s\n"...), 0o644))
	out, err := try()
	require.Error(t, err)
	assert.Contains(t, out, `listBudgte: unknown key (did you mean "listBudget"?)`)
	kept, err := os.ReadFile(m.At("/etc/criproxy/config.yaml"))
	require.NoError(t, err)
	assert.Equal(t, string(text)+"\nlistBudget: 3s\n", string(kept))
	assert.NoFileExists(t, m.At("/etc/criproxy/config.yaml.new"))
	m.Run("systemctl", "restart", "criproxy.service")
}

// daemonSet reads the manifest.
func daemonSet(t *testing.T) (namespace corev1.Namespace, configMap corev1.ConfigMap, set appsv1.DaemonSet) {
	t.Helper()
	source, err := build.SourceDir()
	require.NoError(t, err)
	data, err := os.ReadFile(filepath.Join(source, "../packaging/kubernetes/daemonset.yaml"))
	require.NoError(t, err)
	parts := strings.Split(string(data), "\n---\n")
	require.Len(t, parts, 3)
	for i, into := range []any{&namespace, &configMap, &set} {
		require.NoError(t, yaml.UnmarshalStrict([]byte(parts[i]), into))
	}
	return namespace, configMap, set
}

func TestTheDaemonSetIsOne(t *testing.T) {
	namespace, configMap, set := daemonSet(t)
	assert.Equal(t, namespace.Name, configMap.Namespace)
	assert.Equal(t, namespace.Name, set.Namespace)
	assert.Equal(t, configMap.Name, set.Spec.Template.Spec.Volumes[0].ConfigMap.Name)
	assert.Equal(t, set.Spec.Selector.MatchLabels, set.Spec.Template.Labels)
}
