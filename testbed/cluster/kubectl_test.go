package cluster_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/testbed/host"
)

// The pods that each test of kubectl has: one on each runtime.
var everywhere = map[string]string{"on-one": "", "on-two": "two"} // :: pod → its RuntimeClass

// What people do with kubectl works on the pods of both runtimes, with either kind of ids.
func TestKubectlWorksOnBothRuntimes(t *testing.T) {
	for _, ids := range []string{"prefix", "native"} {
		t.Run(ids, func(t *testing.T) {
			c := newCluster(t, variant{ids: ids})
			for pod, class := range everywhere {
				c.run(t, pod, class, "print", "hello", "then", "serve")
			}
			require.Equal(t, []string{"on-one"}, c.pods(t, c.one))
			require.Equal(t, []string{"on-two"}, c.pods(t, c.two))
			for pod := range everywhere {
				for name, try := range map[string]func(*testing.T, *cluster, string){
					"logs": tryLogs, "exec": tryExec, "attach": tryAttach, "port-forward": tryPortForward, "debug": tryDebug, "resize": tryResize,
				} {
					t.Run(name+" "+pod, func(t *testing.T) { try(t, c, pod) })
				}
			}
			t.Run("figures", func(t *testing.T) { tryFigures(t, c, ids) })
			t.Run("image pull secrets", func(t *testing.T) { tryPullSecrets(t, c) })
			t.Run("drain", func(t *testing.T) { tryDrain(t, c) }) // last, because it removes all pods
		})
	}
}

func tryLogs(t *testing.T, c *cluster, pod string) {
	assert.Equal(t, "hello\nserving\n", c.Kubectl(t, "logs", pod))
	assert.Equal(t, "serving\n", c.Kubectl(t, "logs", pod, "--tail=1"))
}

func tryExec(t *testing.T, c *cluster, pod string) {
	assert.Equal(t, "testbed/app:1\n", c.Kubectl(t, "exec", pod, "--", "app", "file", "/etc/image"))
	assert.Equal(t, "to you\n", c.KubectlWith(t, "to you\n", "exec", "-i", pod, "--", "app", "cat"))
	var exit *exec.ExitError
	out, err := c.Command(t.Context(), "exec", pod, "--", "app", "exit", "7").CombinedOutput()
	require.True(t, errors.As(err, &exit), "%v\n%s", err, out)
	assert.Equal(t, 7, exit.ExitCode(), "%s", out)
}

// The container copies what it reads until that ends.
func tryAttach(t *testing.T, c *cluster, pod string) {
	name := "reads-" + pod
	class := ""
	if everywhere[pod] != "" {
		class = "runtimeClassName: " + everywhere[pod] + ","
	}
	c.Apply(t, fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {%s restartPolicy: Never, containers: [{name: app, image: %q, args: [cat], stdin: true, stdinOnce: true}]}}", name, class, image))
	c.Kubectl(t, "wait", "--for=condition=Ready", "pod/"+name, "--timeout=2m")
	assert.Contains(t, c.KubectlWith(t, "to you\n", "attach", "-i", name), "to you\n")
	c.Kubectl(t, "wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/"+name, "--timeout=2m")
	assert.Equal(t, "to you\n", c.Kubectl(t, "logs", name))
	c.Kubectl(t, "delete", "pod", name)
}

var forwarding = regexp.MustCompile(`Forwarding from (127\.0\.0\.1:\d+) -> 8080`)

func tryPortForward(t *testing.T, c *cluster, pod string) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := c.Command(ctx, "port-forward", "--address", "127.0.0.1", pod, ":8080")
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	defer func() {
		cancel()
		_ = cmd.Wait() // it was killed
	}()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	found := forwarding.FindStringSubmatch(line)
	require.NotNil(t, found, line)
	resp, err := (&http.Client{Timeout: time.Minute}).Get("http://" + found[1] + "/to/you")
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	assert.Equal(t, "GET /to/you\n", string(body))
}

// The container for debugging is in the process namespace of the one that it is to look at, which the request names by its
// id.
func tryDebug(t *testing.T, c *cluster, pod string) {
	c.Kubectl(t, "debug", pod, "--image="+image, "--target=app", "--container=debugger", "--profile=general", "--", "app", "file", "/proc/1/cmdline")
	c.Kubectl(t, "wait", "--for=jsonpath={.status.ephemeralContainerStatuses[0].state.terminated.reason}=Completed", "pod/"+pod, "--timeout=2m")
	assert.Contains(t, c.Kubectl(t, "logs", pod, "-c", "debugger"), "app\x00print\x00hello\x00then\x00serve\x00")
}

func tryResize(t *testing.T, c *cluster, pod string) {
	c.Kubectl(t, "patch", "pod", pod, "--subresource=resize", "--patch", `{"spec": {"containers": [{"name": "app", "resources": {"limits": {"cpu": "300m"}}}]}}`)
	c.AwaitOutput(t, "300m 0", "get", "pod", pod, "-o", "jsonpath={.status.containerStatuses[0].resources.limits.cpu} {.status.containerStatuses[0].restartCount}")
}

// An image of the second runtime is pulled with the credentials for its name: as the pod writes it, with the prefix or
// without.
func tryPullSecrets(t *testing.T, c *cluster) {
	for i, test := range []struct{ class, image, server string }{
		{"", closed + "/testbed/app:1", closed},
		{"two", closed + "/testbed/app:2", closed},
		{"two", two + "/" + closed + "/testbed/other:1", two + "/" + closed},
	} {
		pod := fmt.Sprintf("secret-%d", i)
		c.Kubectl(t, "create", "secret", "docker-registry", pod, "--docker-server="+test.server, "--docker-username=lab", "--docker-password=secret")
		class := ""
		if test.class != "" {
			class = "runtimeClassName: " + test.class + ","
		}
		c.Apply(t, fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {%s terminationGracePeriodSeconds: 1, imagePullSecrets: [{name: %[1]s}], containers: [{name: app, image: %[3]q}]}}", pod, class, test.image))
		c.Kubectl(t, "wait", "--for=condition=Ready", "pod/"+pod, "--timeout=2m")
		assert.Equal(t, test.image, c.Kubectl(t, "get", "pod", pod, "-o", "jsonpath={.status.containerStatuses[0].image}"))
	}
}

// A node changes its runtime: newPodsTo, a drain, and what comes back is on the other runtime.
func tryDrain(t *testing.T, c *cluster) {
	c.Apply(t, fmt.Sprintf(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {replicas: 2, selector: {matchLabels: {app: web}},
template: {metadata: {labels: {app: web}}, spec: {terminationGracePeriodSeconds: 1, containers: [{name: app, image: %q}]}}}}`, image))
	c.Kubectl(t, "rollout", "status", "deployment/web", "--timeout=2m")
	web := regexp.MustCompile(`^web-`)
	count := func(pods []string) (n int) {
		for _, pod := range pods {
			if web.MatchString(pod) {
				n++
			}
		}
		return n
	}
	require.Equal(t, 2, count(c.pods(t, c.one)))
	_, at, err := c.proxy.LogLines(0)
	require.NoError(t, err)
	require.NoError(t, c.proxy.Configure(c.yaml+"newPodsTo: "+two+"\n"))
	require.NoError(t, host.Poll(t.Context(), "criproxy to read its configuration again", func() bool {
		lines, _, err := c.proxy.LogLines(at, "Reloaded the configuration")
		return err == nil && len(lines) > 0
	}))
	c.Kubectl(t, "drain", c.node, "--force", "--timeout=3m")
	assert.Empty(t, c.pods(t, c.one))
	assert.Empty(t, c.pods(t, c.two))
	c.Kubectl(t, "uncordon", c.node)
	c.Kubectl(t, "rollout", "status", "deployment/web", "--timeout=2m")
	assert.Equal(t, 0, count(c.pods(t, c.one)))
	assert.Equal(t, 2, count(c.pods(t, c.two)))
}
