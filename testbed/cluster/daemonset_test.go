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
	"github.com/criproxy/criproxy/testbed/internal/ownimage"
	"github.com/criproxy/criproxy/testbed/internal/systemd"
)

// program is where the DaemonSet puts criproxy on a node.
const program = "/usr/local/bin/criproxy"

// What docs/operations.md says of the DaemonSet, on a node that speaks to containerd at first: the manifest as it is, with
// its own runtimes, and the image of a release from the registry that the manifest names.
func TestADaemonSetBringsCriproxyToItsNode(t *testing.T) {
	m := systemd.Boot(t, emptyPackage(t))                    // the node's systemd, which this machine lacks
	m.Run("mount", "-t", "tmpfs", "tmpfs", "/usr/local/bin") // the rest of /usr is read-only there
	c := newCluster(t, variant{ids: "prefix", direct: true})
	for _, version := range []string{"1.0.0", "1.1.0"} {
		require.NoError(t, c.registry.Push("criproxy:"+version, ownimage.Build(t, version)))
	}
	m.Relay("/run/containerd/containerd.sock", c.one.Socket()) // where the manifest expects the runtimes
	m.Relay("/run/kata/containerd.sock", c.two.Socket())

	manifests := newManifests(t)
	manifests.edit(t, "daemonset.yaml", "env: [", fmt.Sprintf("env: [{name: NODE_PID, value: '%d'}, ", m.PID)) // 1 on other nodes
	c.Kubectl(t, "apply", "-k", string(manifests))
	c.AwaitOutput(t, "0", "-n", "criproxy", "get", "daemonset", "criproxy", "-o", "jsonpath={.status.desiredNumberScheduled}")
	c.Kubectl(t, "label", "node", c.node, "criproxy=on")
	c.Kubectl(t, "-n", "criproxy", "wait", "--for=jsonpath={.status.numberReady}=1", "daemonset/criproxy", "--timeout=3m")
	at(t, m, "criproxy to serve both runtimes", func(r *admin.Report) error { return up(r, "1.0.0") }) // it does: ready says so
	assert.Equal(t, "enabled", m.Run("systemctl", "is-enabled", "criproxy.service"))

	// The node's provisioning points its kubelet at criproxy; existing pods stay.
	own := c.Kubectl(t, "-n", "criproxy", "get", "pods", "-o", "jsonpath={.items[*].metadata.uid} {.items[*].status.containerStatuses[*].containerID}")
	require.NoError(t, c.kubelet.Terminate(t.Context()))
	config := filepath.Join(c.kubelet.Dir, "config.yaml")
	text, err := os.ReadFile(config)
	require.NoError(t, err)
	require.Contains(t, string(text), c.endpoint)
	require.NoError(t, os.WriteFile(config, []byte(strings.ReplaceAll(string(text), c.endpoint, "unix://"+m.At("/run/criproxy.sock"))), 0o644))
	require.NoError(t, c.kubelet.Start(t.Context()))
	c.run(t, "on-one", "", "serve")
	c.Apply(t, fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: on-two, annotations: {kubernetes.io/target-runtime: kata.io}},
spec: {terminationGracePeriodSeconds: 1, containers: [{name: app, image: %q, args: [serve]}]}}`, image))
	c.Kubectl(t, "wait", "--for=condition=Ready", "pod/on-two", "--timeout=2m")
	assert.Equal(t, []string{"on-two"}, c.pods(t, c.two))
	assert.Equal(t, own, c.Kubectl(t, "-n", "criproxy", "get", "pods", "-o", "jsonpath={.items[*].metadata.uid} {.items[*].status.containerStatuses[*].containerID}"))
	still := c.containers(t, "on-one", "on-two")

	tryRemotely(t, c)

	// Another image: the pod is recreated through a criproxy that hands over to its successor meanwhile.
	socket := m.Socket()
	manifests.edit(t, "kustomization.yaml", `newTag: "1.0.0"`, `newTag: "1.1.0"`)
	c.rollOut(t, manifests)
	at(t, m, "the new criproxy to serve", func(r *admin.Report) error { return up(r, "1.1.0") })
	assert.Equal(t, socket, m.Socket())
	assert.Equal(t, "0", m.Show("NRestarts"))

	// Another configuration: a ConfigMap of its own.
	manifests.edit(t, "config.yaml", "backends:", "newPodsTo: kata.io\nbackends:")
	c.rollOut(t, manifests)
	good := ""
	at(t, m, "the new configuration to be in use", func(r *admin.Report) error { good = r.Config.ID; return up(r, "1.1.0") })
	c.run(t, "sent", "", "serve")
	assert.Equal(t, []string{"on-two", "sent"}, c.pods(t, c.two))

	// With a third one, a runtime that was up is gone: the pod says so, and never becomes ready.
	manifests.edit(t, "config.yaml", "/run/kata/containerd.sock", "/run/kata/wrong.sock")
	c.Kubectl(t, "apply", "-k", string(manifests))
	at(t, m, "the runtime to be gone", func(r *admin.Report) error {
		if r.Config.ID == good || up(r, "1.1.0") == nil {
			return fmt.Errorf("%+v", r.Backends)
		}
		return nil
	})
	c.AwaitMatch(t, `Startup probe failed: kata.io gone since `, "-n", "criproxy", "get", "events", "-o", "jsonpath={.items[*].message}")
	c.AwaitOutput(t, "1 0", "-n", "criproxy", "get", "daemonset", "criproxy", "-o", "jsonpath={.status.updatedNumberScheduled} {.status.numberReady}")
	c.Kubectl(t, "-n", "criproxy", "rollout", "undo", "daemonset/criproxy")
	c.Kubectl(t, "-n", "criproxy", "rollout", "status", "daemonset/criproxy", "--timeout=3m")
	at(t, m, "the configuration before to be back", func(r *admin.Report) error {
		if r.Config.ID != good {
			return fmt.Errorf("%+v", r.Config)
		}
		return up(r, "1.1.0")
	})

	// The DaemonSet goes, but the criproxy that it has installed keeps serving.
	pid := m.Show("MainPID")
	c.Kubectl(t, "delete", "-k", string(manifests), "--timeout=3m")
	assert.Equal(t, pid, m.Show("MainPID"))
	assert.Equal(t, still, c.containers(t, "on-one", "on-two"))
	c.run(t, "later", "", "serve")
	c.Kubectl(t, "delete", "pod", "on-one", "on-two", "sent", "later", "--timeout=2m")
}

// manifests is a folder with packaging/kubernetes, as somebody who runs a cluster has it.
type manifests string

func newManifests(t *testing.T) manifests {
	t.Helper()
	source, err := build.SourceDir()
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(filepath.Join(source, "../packaging/kubernetes"))))
	return manifests(dir)
}

// edit changes a file, which must have old.
func (m manifests) edit(t *testing.T, file, old, to string) {
	t.Helper()
	path := filepath.Join(string(m), file)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Contains(t, string(text), old)
	require.NoError(t, os.WriteFile(path, []byte(strings.Replace(string(text), old, to, 1)), 0o644))
}

// rollOut applies manifests, and waits until all nodes have them.
func (c *cluster) rollOut(t *testing.T, m manifests) {
	t.Helper()
	c.Kubectl(t, "apply", "-k", string(m))
	c.Kubectl(t, "-n", "criproxy", "rollout", "status", "daemonset/criproxy", "--timeout=3m")
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
	return c.Kubectl(t, append([]string{"get", "pod", "-o", "jsonpath={range .items[*]}{.metadata.uid} {.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount} {end}"}, pods...)...)
}
