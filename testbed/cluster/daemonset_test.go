package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/internal/containerfile"
	"github.com/criproxy/criproxy/testbed/internal/systemd"
)

// program is where the DaemonSet puts criproxy on a node.
const program = "/usr/local/bin/criproxy"

// What docs/operations.md says of the DaemonSet, on a node that speaks to containerd at first: the manifest as it is, with
// its own runtimes, and the image of the Containerfile from the registry that the manifest names.
func TestADaemonSetBringsCriproxyToItsNode(t *testing.T) {
	m := systemd.Boot(t, emptyPackage(t))                    // the node's systemd, which this machine lacks
	m.Run("mount", "-t", "tmpfs", "tmpfs", "/usr/local/bin") // the rest of /usr is read-only there
	c := newCluster(t, variant{ids: "prefix", direct: true})
	for _, version := range []string{"0.1.0", "0.2.0"} {
		require.NoError(t, c.registry.Push("criproxy:"+version, containerfile.Build(t, version)))
	}
	m.Relay("/run/containerd/containerd.sock", c.one.Socket()) // where the manifest expects the runtimes
	m.Relay("/run/kata/containerd.sock", c.two.Socket())

	source, err := build.SourceDir()
	require.NoError(t, err)
	manifest := filepath.Join(source, "../packaging/kubernetes/daemonset.yaml")
	c.kubectl(t, "apply", "-f", manifest)
	c.kubectl(t, "-n", "criproxy", "set", "env", "daemonset/criproxy", fmt.Sprintf("NODE_PID=%d", m.PID)) // 1 on other nodes
	c.awaitOutput(t, "0", "-n", "criproxy", "get", "daemonset", "criproxy", "-o", "jsonpath={.status.desiredNumberScheduled}")
	c.kubectl(t, "label", "node", c.node, "criproxy=on")
	c.kubectl(t, "-n", "criproxy", "wait", "--for=jsonpath={.status.numberReady}=1", "daemonset/criproxy", "--timeout=3m")
	at(t, m, "criproxy to serve both runtimes", func(r *admin.Report) error { return up(r, "0.1.0") })
	assert.Equal(t, "enabled", m.Run("systemctl", "is-enabled", "criproxy.service"))

	// The node's provisioning points its kubelet at criproxy; existing pods stay.
	own := c.kubectl(t, "-n", "criproxy", "get", "pods", "-o", "jsonpath={.items[*].metadata.uid} {.items[*].status.containerStatuses[*].containerID}")
	require.NoError(t, c.kubelet.Terminate(t.Context()))
	config := filepath.Join(c.kubelet.Dir, "config.yaml")
	text, err := os.ReadFile(config)
	require.NoError(t, err)
	require.Contains(t, string(text), c.endpoint)
	require.NoError(t, os.WriteFile(config, []byte(strings.ReplaceAll(string(text), c.endpoint, "unix://"+m.At("/run/criproxy.sock"))), 0o644))
	require.NoError(t, c.kubelet.Start(t.Context()))
	c.run(t, "on-one", "", "serve")
	c.apply(t, fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: on-two, annotations: {kubernetes.io/target-runtime: kata.io}},
spec: {terminationGracePeriodSeconds: 1, containers: [{name: app, image: %q, args: [serve]}]}}`, image))
	c.kubectl(t, "wait", "--for=condition=Ready", "pod/on-two", "--timeout=2m")
	assert.Equal(t, []string{"on-two"}, c.pods(t, c.two))
	assert.Equal(t, own, c.kubectl(t, "-n", "criproxy", "get", "pods", "-o", "jsonpath={.items[*].metadata.uid} {.items[*].status.containerStatuses[*].containerID}"))
	still := c.containers(t, "on-one", "on-two")

	// Another image: the pod is recreated through a criproxy that hands over to its successor meanwhile.
	socket := m.Socket()
	c.kubectl(t, "-n", "criproxy", "set", "image", "daemonset/criproxy", "on-node=registry.example/criproxy:0.2.0")
	c.kubectl(t, "-n", "criproxy", "rollout", "status", "daemonset/criproxy", "--timeout=3m")
	at(t, m, "the new criproxy to serve", func(r *admin.Report) error { return up(r, "0.2.0") })
	assert.Equal(t, socket, m.Socket())
	assert.Equal(t, "0", m.Show("NRestarts"))

	// The ConfigMap changes.
	patch, err := json.Marshal(map[string]any{"data": map[string]string{"config.yaml": `listen: /run/criproxy.sock
newPodsTo: kata.io
backends:
- address: /run/containerd/containerd.sock
- {name: kata.io, address: /run/kata/containerd.sock}
`}})
	require.NoError(t, err)
	c.kubectl(t, "-n", "criproxy", "patch", "configmap", "criproxy", "--type=merge", "-p", string(patch))
	at(t, m, "the new configuration to be read", func(r *admin.Report) error {
		if r.Config.Reloads != 1 {
			return fmt.Errorf("%+v", r.Config)
		}
		return nil
	})
	c.run(t, "sent", "", "serve")
	assert.Equal(t, []string{"on-two", "sent"}, c.pods(t, c.two))

	// The DaemonSet goes, but the criproxy that it has installed keeps serving.
	pid := m.Show("MainPID")
	c.kubectl(t, "delete", "-f", manifest, "--timeout=3m")
	assert.Equal(t, pid, m.Show("MainPID"))
	assert.Equal(t, still, c.containers(t, "on-one", "on-two"))
	c.run(t, "later", "", "serve")
	c.kubectl(t, "delete", "pod", "on-one", "on-two", "sent", "later", "--timeout=2m")
}

// emptyPackage is a folder of files for a machine without a package: systemd's folders.
func emptyPackage(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"etc/systemd/system", "usr/lib/systemd/system"} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, name), 0o755))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "usr/lib/systemd/system/ours.target"), []byte("[Unit]\nDescription=There is one\n"), 0o644))
	return dir
}

// at waits until what criproxy says of itself on a machine is as wanted.
func at(t *testing.T, m *systemd.Machine, what string, wanted func(*admin.Report) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	require.NoError(t, host.Await(ctx, what, func() error {
		out, err := m.In(program, "status", "-o", "json").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		var r admin.Report
		if err := json.Unmarshal(out, &r); err != nil {
			return err
		}
		return wanted(&r)
	}))
}

// up fails unless criproxy has that version, and both its runtimes are up.
func up(r *admin.Report, version string) error {
	if r.Version != version {
		return fmt.Errorf("version %s serves", r.Version)
	}
	for _, b := range r.Backends {
		if b.State != "up" {
			return fmt.Errorf("%s is %s: %s", b.Name, b.State, b.Error)
		}
	}
	return nil
}

// containers returns what tells the containers of pods from others, and how often they were restarted.
func (c *cluster) containers(t *testing.T, pods ...string) string {
	t.Helper()
	return c.kubectl(t, append([]string{"get", "pod", "-o", "jsonpath={range .items[*]}{.metadata.uid} {.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount} {end}"}, pods...)...)
}
