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

// What the DaemonSet's container does, done to a machine with a systemd.
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
		cmd.Env = append(os.Environ(), "NODE_PID="+strconv.Itoa(m.pid), "FROM="+image, "CONFIG="+config, "PROGRAM=/opt/criproxy", "ONCE=yes")
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
	assert.Equal(t, "active", m.show("ActiveState"))
	socket, pid := m.socket(), m.show("MainPID")
	assert.Contains(t, m.run("/opt/criproxy", "version"), "criproxy "+versions[0])

	assert.NotContains(t, put(), "is new", "as when the pod is restarted")
	assert.Equal(t, pid, m.show("MainPID"))

	unpack(1)
	put()
	m.eventually("the new one serves", func() bool { return m.show("MainPID") != pid })
	assert.Equal(t, socket, m.socket())
	assert.Equal(t, "0", m.show("NRestarts"))
	pid = m.show("MainPID")

	text, err := os.ReadFile(config)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(config, append(text, "\nlistBudget: 3s\n"...), 0o644))
	put()
	m.eventually("it is read again", func() bool { return strings.Contains(m.run("/opt/criproxy", "status", "-json"), `"reloads":1`) })
	assert.Equal(t, pid, m.show("MainPID"))

	// What has mistakes never gets to the node, where a criproxy that is started could not live with it.
	require.NoError(t, os.WriteFile(config, append(text, "\nlistBudgte: 3s\n"...), 0o644))
	out, err := try()
	require.Error(t, err)
	assert.Contains(t, out, `listBudgte: unknown key (did you mean "listBudget"?)`)
	kept, err := os.ReadFile(m.at("/etc/criproxy/config.yaml"))
	require.NoError(t, err)
	assert.Equal(t, string(text)+"\nlistBudget: 3s\n", string(kept))
	assert.NoFileExists(t, m.at("/etc/criproxy/config.yaml.new"))
	m.run("systemctl", "restart", "criproxy.service")
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
