package cluster_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/cookiejar"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
)

// tryRemotely runs kubectl criproxy on the cluster, in which the DaemonSet and the pods on-one and on-two run. jane has
// the Role of docs/security.md. tryRemotely lets her look up pods in the namespace default as well, after it has tried
// what she sees without that. joe has no rights.
func tryRemotely(t *testing.T, c *cluster) {
	source, err := build.SourceDir()
	require.NoError(t, err)
	bin := t.TempDir()
	out, err := host.CommandWithin(t.Context(), 10*time.Minute, "go", "build", "-C", filepath.Join(source, ".."), "-o", filepath.Join(bin, "kubectl-criproxy"), "./cmd/criproxy").CombinedOutput()
	require.NoError(t, err, "%s", out)
	security, err := os.ReadFile(filepath.Join(source, "../docs/security.md"))
	require.NoError(t, err)
	role := regexp.MustCompile("(?s)```yaml\n(apiVersion: rbac.*?)```").FindSubmatch(security)
	require.NotNil(t, role, "the Role of docs/security.md")
	c.Apply(t, string(role[1]))
	c.Kubectl(t, "-n", "criproxy", "create", "rolebinding", "remote", "--role=criproxy-remote", "--user=jane")

	plugin := func(ctx context.Context, args ...string) *exec.Cmd {
		cmd := c.Command(ctx, append([]string{"criproxy"}, args...)...)
		cmd.Env = append(cmd.Env, "PATH="+c.Bin+":"+bin+":"+os.Getenv("PATH"))
		return cmd
	}
	run := func(code int, args ...string) (out, errOut string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		cmd := plugin(ctx, args...)
		var o, e bytes.Buffer
		cmd.Stdout, cmd.Stderr = &o, &e
		var exit *exec.ExitError
		if err := cmd.Run(); !errors.As(err, &exit) {
			require.NoError(t, err)
		}
		assert.Equal(t, code, cmd.ProcessState.ExitCode(), "%s\n%s%s", args, &o, &e)
		return o.String(), e.String()
	}

	text, _ := run(0, "--context", "jane", "status")
	assert.True(t, strings.HasPrefix(text, "1 of 1 up\n"), text)
	assert.Regexp(t, c.node+` +kata\.io +up `, text)
	text, _ = run(0, "--context", "jane", "pods", "-o", "json")
	assert.Contains(t, text, `"name": "on-two"`)
	text, errOut := run(0, "--context", "jane", "where", "on-two")
	assert.Contains(t, text, "pod default/on-two is on kata.io of "+c.node+"\n")
	assert.Contains(t, errOut, `looking for on-two on all nodes: asking the API server: kubectl: exit status 1: Error from server (Forbidden): pods `)
	pod := c.Kubectl(t, "-n", "criproxy", "get", "pods", "-o", "jsonpath={.items[*].metadata.name}")
	addresses := []string{"kube://" + c.node, "kube://criproxy/" + pod}
	for _, address := range addresses {
		text, _ = run(0, "--context", "jane", "where", "-admin", address, "on-two")
		assert.Contains(t, text, "pod default/on-two is on kata.io\n", address)
	}
	text, _ = run(0, "--context", "jane", "hooks", "-nodes", c.node)
	assert.Equal(t, "No plugin is registered on these nodes.\n", text)

	// What docs/security.md says that pods, what selects them, and labels of nodes need in addition.
	c.Kubectl(t, "label", "pod", "on-two", "app=web")
	c.Kubectl(t, "create", "deployment", "web", "--image="+image, "--replicas=0") // it selects app=web

	needs := map[string]string{ // :: what where looks for → what jane must be allowed to see
		"-n default on-two": "pods", "-n default app=web": "pods", "-n default deployment/web": "deployments",
		"-l criproxy=on on-two": "nodes",
	}
	for what, resource := range needs {
		_, errOut = run(1, append([]string{"--context", "jane", "where"}, strings.Fields(what)...)...)
		assert.Regexp(t, `Error from server \(Forbidden\): .* is forbidden: User "jane" cannot (list|get) resource "`+resource+`" in API group `, errOut)
	}
	c.Kubectl(t, "create", "role", "look", "--verb=get,list", "--resource=pods,deployments")
	c.Kubectl(t, "create", "rolebinding", "look", "--role=look", "--user=jane")
	c.Kubectl(t, "create", "clusterrole", "look", "--verb=list", "--resource=nodes")
	c.Kubectl(t, "create", "clusterrolebinding", "look", "--clusterrole=look", "--user=jane")
	for what := range needs {
		text, _ = run(0, append([]string{"--context", "jane", "where"}, strings.Fields(what)...)...)
		assert.Contains(t, text, "pod default/on-two is on kata.io of "+c.node+"\n", what)
	}
	_, errOut = run(1, "--context", "jane", "status", "-l", "criproxy=off")
	assert.Equal(t, "criproxy: no node has the labels criproxy=off\n", errOut)
	config := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(config, []byte("listen: /run/criproxy.sock\nbackends:\n- address: /run/containerd/containerd.sock\n"), 0o644))
	text, errOut = run(1, "--context", "jane", "check", "-f", config)
	assert.Contains(t, text, c.node+": ")
	assert.Contains(t, text+errOut, "kata.io has 1 pod")

	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	started := func(args ...string) *bufio.Reader {
		cmd := plugin(ctx, args...)
		stdout, err := cmd.StdoutPipe()
		require.NoError(t, err)
		cmd.Stderr = t.Output()
		require.NoError(t, cmd.Start())
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // it was killed
		})
		return bufio.NewReader(stdout)
	}
	line, err := started("--context", "jane", "tail", "-past", "-n", "default", "-o", "json", "-method", "RunPodSandbox", "on-two").ReadString('\n')
	require.NoError(t, err)
	var call map[string]any
	require.NoError(t, json.Unmarshal([]byte(line), &call), line)
	assert.Equal(t, c.node, call["node"])

	page, link := started("--context", "jane", "ui", "-n", "default", "on-two"), ""
	for link == "" {
		line, err := page.ReadString('\n')
		require.NoError(t, err)
		link = regexp.MustCompile(`http://\S+|$`).FindString(line)
	}
	assert.True(t, strings.HasSuffix(link, "#pod=on-two"), link)
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	client := &http.Client{Jar: jar, Timeout: time.Minute}
	for i, address := range []string{link, strings.Split(link, "?")[0] + "stream"} {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
		require.NoError(t, err)
		resp, err := client.Do(req)
		require.NoError(t, err)
		assert.Equal(t, http.StatusOK, resp.StatusCode, address)
		if i == 1 {
			found, err := readUntil(resp.Body, "on-two")
			assert.NoError(t, err, found)
		}
		resp.Body.Close()
	}

	_, errOut = run(1, "--context", "joe", "status")
	assert.Contains(t, errOut, `Error from server (Forbidden): pods is forbidden: User "joe" cannot list resource "pods" in API group "" in the namespace "criproxy"`)
	for _, address := range addresses {
		_, errOut = run(1, "--context", "joe", "where", "-admin", address, "on-two")
		assert.Regexp(t, `Error from server \(Forbidden\): pods .*is forbidden: User "joe" cannot (list|get) resource "pods" in API group "" in the namespace "criproxy"`, errOut, address)
	}
	// Who may see the pods, but not exec in them, learns that.
	c.Kubectl(t, "-n", "criproxy", "create", "role", "see", "--verb=get,list", "--resource=pods")
	c.Kubectl(t, "-n", "criproxy", "create", "rolebinding", "see", "--role=see", "--user=joe")
	text, errOut = run(4, "--context", "joe", "status")
	assert.True(t, strings.HasPrefix(text, "0 of 1 up\n"), text)
	assert.Regexp(t, `criproxy: `+c.node+`: kubectl: .*pods "criproxy-\w+" is forbidden: User "joe" cannot (create|get) resource "pods/exec"`, errOut)
	for _, address := range addresses {
		_, errOut = run(1, "--context", "joe", "where", "-admin", address, "on-two")
		assert.Regexp(t, `User "joe" cannot (create|get) resource "pods/exec"`, errOut, address)
	}
}

// readUntil reads until a text has come.
func readUntil(r io.Reader, text string) (string, error) {
	var all []byte
	for b := make([]byte, 4<<10); ; {
		n, err := r.Read(b)
		if all = append(all, b[:n]...); bytes.Contains(all, []byte(text)) {
			return "", nil
		}
		if err != nil {
			return string(all), err
		}
	}
}
