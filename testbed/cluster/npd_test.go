package cluster_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/fakecri"
	"github.com/criproxy/criproxy/internal/testing/testkit"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/internal/plane"
)

// The real node-problem-detector makes conditions and events of a node, with packaging/kubernetes/node-problem-detector.
func TestNodeProblemDetectorTellsOfARuntimeThatIsGone(t *testing.T) {
	c := &cluster{Plane: plane.New(t)}
	dir := t.TempDir()
	source, err := build.SourceDir()
	require.NoError(t, err)
	compiled := func(module, name, pkg string, flags ...string) string {
		path := filepath.Join(dir, name)
		out, err := host.CommandWithin(t.Context(), 10*time.Minute, "go", append(append([]string{"build", "-C", filepath.Join(source, module), "-o", path}, flags...), pkg)...).CombinedOutput()
		require.NoError(t, err, "%s", out)
		return path
	}
	criproxy := compiled("..", "criproxy", "./cmd/criproxy")
	detector := compiled("npd", "detector", "k8s.io/node-problem-detector/cmd/nodeproblemdetector", "-tags", "disable_system_log_monitor,disable_stackdriver_exporter")

	sockets := testkit.SocketDir(t)
	var kata *testkit.Machine
	for i, name := range []string{"", "kata.io"} {
		kata = testkit.NewMachine(t, name, fmt.Sprintf("%s/%d.sock", sockets, i), fakecri.Config{})
		kata.Start()
	}
	config := fmt.Sprintf("listen: %[1]s/c.sock\nstateDir: %[1]s/state\nbackends:\n- address: %[1]s/0.sock\n- {name: kata.io, address: %[1]s/1.sock}\n", sockets)
	require.NoError(t, os.WriteFile(sockets+"/c.yaml", []byte(config), 0o600))
	c.Start(t, "criproxy", []string{criproxy, "-config", sockets + "/c.yaml"})
	testkit.Eventually(t, "criproxy serves", func() bool { return testkit.Connects(sockets + "/c.admin.sock") })
	_, err = runtimeapi.NewRuntimeServiceClient(testkit.Dialed(t, sockets+"/c.sock")).RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "shop", Uid: "1"}, Annotations: map[string]string{"kubernetes.io/target-runtime": "kata.io"},
	}})
	require.NoError(t, err)

	packaged := filepath.Join(source, "../packaging/kubernetes/node-problem-detector")
	monitor, err := os.ReadFile(filepath.Join(packaged, "criproxy-monitor.json"))
	require.NoError(t, err)
	quick := strings.NewReplacer(`"invoke_interval": "30s"`, `"invoke_interval": "2s"`, "/config/plugin/", packaged+"/").Replace(string(monitor))
	require.NotEqual(t, string(monitor), quick)
	require.NoError(t, os.WriteFile(dir+"/monitor.json", []byte(quick), 0o600))
	c.Apply(t, "apiVersion: v1\nkind: Node\nmetadata: {name: node-7}\n")
	ports, err := host.FreePorts(2)
	require.NoError(t, err)
	c.Start(t, "detector", []string{detector, "--logtostderr", "--hostname-override=node-7", fmt.Sprint("--port=", ports[0]), fmt.Sprint("--prometheus-port=", ports[1]),
		"--apiserver-override=" + c.Server + "?inClusterConfig=false&auth=" + c.Kubeconfig + "&insecure=true", "--config.custom-plugin-monitor=" + dir + "/monitor.json",
	}, "CRIPROXY="+criproxy, "CRIPROXY_ADMIN="+sockets+"/c.admin.sock")

	condition := func(kind string) []string {
		return []string{"get", "node", "node-7", "-o", fmt.Sprintf(`jsonpath={range .status.conditions[?(@.type=="%s")]}{.status} {.reason}: {.message}{end}`, kind)}
	}
	c.AwaitOutput(t, "False ContainerRuntimesAreUp: all container runtimes are up", condition("ContainerRuntimeGone")...)
	kata.Kill()
	testkit.Eventually(t, "the node says that its runtime is gone", func() bool {
		out, err := c.Command(context.Background(), condition("ContainerRuntimeGone")...).Output()
		return err == nil && strings.HasPrefix(string(out), "True ContainerRuntimeGone: kata.io gone since ") && strings.HasSuffix(string(out), ", 1 pod")
	})
	assert.Regexp(t, `ContainerRuntimeGone +True .* ContainerRuntimeGone +kata.io gone since .*, 1 pod`, c.Kubectl(t, "describe", "node", "node-7"))
	assert.Contains(t, c.Kubectl(t, condition("CriproxyNotReady")...), "False CriproxyIsReady")
	assert.Contains(t, c.Kubectl(t, "get", "events", "-o", "jsonpath={.items[*].message}"), "Node condition ContainerRuntimeGone is now: True, reason: ContainerRuntimeGone, message: \"kata.io gone since ")
	kata.Start()
	c.AwaitOutput(t, "False ContainerRuntimesAreUp: all container runtimes are up", condition("ContainerRuntimeGone")...)
}
