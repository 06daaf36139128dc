package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/internal/plane"
)

// Kubernetes' own controllers roll the manifests out to three nodes, whose kubelets are this test: a new configuration
// reaches one node after another, one that is bad stops at the first, and the one before comes back.
func TestARolloutStopsAtTheFirstNodeThatIsWorse(t *testing.T) {
	c := &cluster{Plane: plane.New(t)}
	nodes := []string{"node-1", "node-2", "node-3"}
	for _, node := range nodes {
		c.Apply(t, fmt.Sprintf(`{apiVersion: v1, kind: Node, metadata: {name: %s, labels: {criproxy: "on", kubernetes.io/os: linux}}}`, node))
	}
	bad := "" // the ConfigMap with which no pod becomes ready
	manifests := newManifests(t)
	has := func() map[string]string { // :: node → the ConfigMap of its pod, if that is ready
		return c.beKubelets(t, nodes, func(configMap string) bool { return configMap != bad })
	}
	await := func(what string, is func(map[string]string) bool) (last map[string]string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		require.NoError(t, host.Await(ctx, what, func() error {
			if last = has(); !is(last) {
				return fmt.Errorf("%v", last)
			}
			return nil
		}))
		return last
	}
	all := func(configMap string) func(map[string]string) bool {
		return func(is map[string]string) bool {
			n := 0
			for _, one := range is {
				if one == configMap {
					n++
				}
			}
			return n == len(nodes)
		}
	}
	apply := func() (configMap string) {
		c.Kubectl(t, "apply", "-k", string(manifests))
		return c.Kubectl(t, "-n", "criproxy", "get", "daemonset", "criproxy", "-o", "jsonpath={.spec.template.spec.volumes[0].configMap.name}")
	}
	first := apply()
	await("all nodes to have the first configuration", all(first))

	manifests.edit(t, "config.yaml", "backends:", "listBudget: 3s\nbackends:")
	second := apply()
	require.NotEqual(t, first, second)
	most := 0 // nodes without a pod that is ready
	await("all nodes to have the second configuration", func(is map[string]string) bool {
		most = max(most, len(nodes)-len(is))
		return all(second)(is)
	})
	assert.Equal(t, 1, most, "one after another")

	manifests.edit(t, "config.yaml", "backends:", "newPodsTo: kata.io\nbackends:")
	c.Kubectl(t, "kustomize", string(manifests))
	for line := range strings.Lines(c.Kubectl(t, "kustomize", string(manifests))) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "name: criproxy-"); ok {
			bad = "criproxy-" + name
		}
	}
	require.Equal(t, bad, apply())
	await("the first node to be worse", func(is map[string]string) bool {
		return len(is) == 2 && c.Kubectl(t, "-n", "criproxy", "get", "daemonset", "criproxy", "-o", "jsonpath={.status.updatedNumberScheduled} {.status.numberUnavailable}") == "1 1"
	})
	for range 10 { // the controllers see all of these states
		is := has()
		require.Len(t, is, 2)
		for _, one := range is {
			assert.Equal(t, second, one)
		}
	}
	c.Kubectl(t, "-n", "criproxy", "rollout", "undo", "daemonset/criproxy")
	await("all nodes to have the second configuration again", all(second))
}

// beKubelets does once what the kubelets of nodes do: they say that they live, run the pods of criproxy, which are
// ready if their ConfigMap is good, and end those that are to go. It returns the ConfigMaps of the pods that are ready.
func (c *cluster) beKubelets(t *testing.T, nodes []string, good func(configMap string) bool) map[string]string {
	t.Helper()
	patch := func(object, in, status string) {
		t.Helper()
		c.Kubectl(t, "patch", object, "--namespace="+in, "--subresource=status", "-p", status)
	}
	now := time.Now().UTC().Format(time.RFC3339)
	for _, node := range nodes {
		patch("node/"+node, "", fmt.Sprintf(`{"status": {"allocatable": {"cpu": "1", "memory": "1Gi", "pods": "10"}, "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": %q}]}}`, now))
	}
	var pods corev1.PodList
	require.NoError(t, json.Unmarshal([]byte(c.Kubectl(t, "-n", "criproxy", "get", "pods", "-o", "json")), &pods))
	ready := map[string]string{}
	for _, p := range pods.Items {
		is := "False"
		for _, v := range p.Spec.Volumes {
			if v.ConfigMap != nil && good(v.ConfigMap.Name) {
				is = "True"
				if p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning {
					ready[p.Spec.NodeName] = v.ConfigMap.Name
				}
			}
		}
		switch {
		case p.DeletionTimestamp != nil:
			c.Kubectl(t, "-n", "criproxy", "delete", "pod", p.Name, "--force", "--grace-period=0", "--ignore-not-found")
		case p.Spec.NodeName != "" && p.Status.Phase != corev1.PodRunning:
			patch("pod/"+p.Name, "criproxy", fmt.Sprintf(`{"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": %q, "lastTransitionTime": %q}]}}`, is, now))
		}
	}
	return ready
}
