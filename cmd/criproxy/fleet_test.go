package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/command/cli"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/plugins"
	"github.com/criproxy/criproxy/internal/testing/bounded"
	"github.com/criproxy/criproxy/internal/testing/testkit"
	"github.com/criproxy/criproxy/internal/testing/untested"
)

// fleetVariable is the environment variable with the folder of the sockets of a test's nodes, NODE.sock. fakeSSH and
// fakeKubectl find them there.
const fleetVariable = "CRIPROXY_TEST_FLEET"

// fakeSSH is a program that runs the command of an ssh command line, for a host that is a node of the test.
func fakeSSH() {
	args := os.Args[1:]
	i := slices.Index(args, "--")
	host, command := args[i+1], args[i+2:]
	if slices.Contains(args[:i], "-oProxyCommand") || command[0] != "criproxy" {
		panic(fmt.Sprint("refused: ", args))
	}
	onNode(host, strings.Join(command[1:], " "))
}

// onNode runs criproxy as on a node. args go through a shell, as those of ssh do.
func onNode(node, args string) {
	socket := filepath.Join(os.Getenv(fleetVariable), node+".sock")
	if _, err := os.Stat(socket); err != nil {
		fmt.Fprintf(os.Stderr, "connect to host %s port 22: Connection refused\n", node)
		os.Exit(255)
	}
	ctx, cancel := context.WithTimeout(context.Background(), bounded.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", "exec criproxy "+args)
	cmd.Env = append(os.Environ(), "CRIPROXY_ADMIN="+socket, "CRIPROXY_NODES=") // as on a node, which has no such variable
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		os.Exit(1)
	}
}

// fakeKubectl is a program that answers as kubectl does. Pods are in pods.json of the folder; that of criproxy on a node
// is called criproxy-NODE. The nodes that have labels are in labels.json.
func fakeKubectl() {
	args, folder := os.Args[1:], os.Getenv(fleetVariable)
	value := func(name string) string {
		for _, arg := range args {
			if v, ok := strings.CutPrefix(arg, "--"+name+"="); ok {
				return v
			}
		}
		return ""
	}
	if value("context") == "forbidden" {
		fmt.Fprintln(os.Stderr, `Error from server (Forbidden): pods is forbidden: User "jane" cannot list resource "pods" in API group "" in the namespace "criproxy"`)
		os.Exit(1)
	}
	if i := slices.Index(args, "--"); i > 0 {
		onNode(strings.TrimPrefix(args[i-1], "criproxy-"), strings.Join(args[i+2:], " "))
		return
	}
	read := func(file string, v any) {
		text, err := os.ReadFile(filepath.Join(folder, file))
		if err == nil {
			err = json.Unmarshal(text, v)
		}
		if err != nil {
			panic(err)
		}
	}
	var all struct {
		Items []map[string]map[string]any `json:"items"`
	}
	if slices.Contains(args, "nodes") {
		var labelled map[string][]string // :: labels → nodes
		read("labels.json", &labelled)
		for _, name := range labelled[value("selector")] {
			all.Items = append(all.Items, map[string]map[string]any{"metadata": {"name": name}})
		}
		_ = json.NewEncoder(os.Stdout).Encode(all) // the reader is the test
		return
	}
	read("pods.json", &all)
	if slices.Contains(args, "deployment/web") {
		fmt.Println(`{"spec": {"selector": {"matchLabels": {"app": "web"}}}}`)
		return
	}
	fields := strings.Split(value("field-selector"), "=")
	all.Items = slices.DeleteFunc(all.Items, func(p map[string]map[string]any) bool {
		return p["metadata"]["namespace"] != value("namespace") ||
			fields[0] == "spec.nodeName" && p["spec"]["nodeName"] != fields[1] || fields[0] == "metadata.name" && p["metadata"]["name"] != fields[1]
	})
	_ = json.NewEncoder(os.Stdout).Encode(all) // the reader is the test
}

// fleet is nodes whose admin sockets are served by this process.
type fleet struct {
	testing.TB
	dir string
	env []string // with which kubectl and ssh reach them
}

func newFleet(t testing.TB) *fleet {
	f := &fleet{TB: t, dir: testkit.SocketDir(t)}
	bin := t.TempDir()
	for _, program := range []string{"ssh", "kubectl"} {
		require.NoError(t, os.WriteFile(filepath.Join(bin, program), []byte("#!/bin/sh\nexec criproxy-test-"+program+` "$@"`+"\n"), 0o755))
	}
	f.env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), fleetVariable+"="+f.dir, "CRIPROXY_ADMIN=", "CRIPROXY_NODES=")
	return f
}

// serve serves the admin socket of a node until the test ends.
func (f *fleet) serve(node string, h http.Handler) string {
	path := filepath.Join(f.dir, node+".sock")
	l, err := net.Listen("unix", path)
	require.NoError(f, err)
	s := &http.Server{Handler: h}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	f.Cleanup(func() { _ = s.Close(); <-done })
	return path
}

// nodes serves n nodes that are up, and their pods of criproxy.
func (f *fleet) nodes(n int) (names []string) {
	for i := range n {
		name := fmt.Sprintf("node-%02d", i)
		f.serve(name, nodeWith(name, func(*admin.Report) {}))
		names = append(names, name)
	}
	f.pods(names...)
	return names
}

// pods writes the pods that the API server knows: criproxy's on each node, and one called web-NODE in the namespace shop.
func (f *fleet) pods(nodes ...string) {
	var items []any
	add := func(namespace, name, uid, node string) {
		items = append(items, map[string]any{
			"metadata": map[string]any{"name": name, "namespace": namespace, "uid": uid},
			"spec":     map[string]any{"nodeName": node},
			"status":   map[string]any{"phase": "Running", "containerStatuses": []any{map[string]any{"state": map[string]any{"running": map[string]any{}}}}},
		})
	}
	for _, node := range nodes {
		add("criproxy", "criproxy-"+node, "", node)
		add("shop", "web-"+node, "uid-"+node, node)
	}
	text, err := json.Marshal(map[string]any{"items": items})
	require.NoError(f, err)
	require.NoError(f, os.WriteFile(filepath.Join(f.dir, "pods.json"), text, 0o600))
}

// labels writes which nodes the API server selects by labels.
func (f *fleet) labels(nodes map[string][]string) {
	text, err := json.Marshal(nodes)
	require.NoError(f, err)
	require.NoError(f, os.WriteFile(filepath.Join(f.dir, "labels.json"), text, 0o600))
}

// nodeWith answers as the criproxy of a node, whose report edit changes.
func nodeWith(name string, edit func(*admin.Report)) *http.ServeMux {
	mux := http.NewServeMux()
	answer := func(path string, v any) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(v) })
	}
	pods := 9
	r := admin.Report{Version: config.Version, Ready: true, Config: admin.Config{ID: "41c20000"}, Backends: []admin.Backend{
		{Name: "primary", State: "up", Since: time.Now().Add(-time.Hour)},
		{Name: "kata.io", State: "up", Since: time.Now().Add(-12 * time.Minute), Pods: &pods},
	}}
	edit(&r)
	answer("/version", admin.Version{Version: config.Version, PID: 1})
	answer("/status", r)
	answer("/pods", admin.Pods{Pods: []admin.Pod{{Namespace: "shop", Name: "web-" + name, UID: "uid-" + name, Backend: "kata.io", State: "ready", ID: "kata.io__" + name, NativeID: name}}})
	return mux
}

// during matches a duration that was d when the test began, and grows with the time; criproxy rounds it to steps.
func during(d, step time.Duration, began time.Time) string {
	var all []string
	for end := d + time.Since(began) + step/2; d <= end; d += step {
		text := d.String()
		if step == time.Minute {
			text = strings.TrimSuffix(text, "0s")
		}
		all = append(all, text)
	}
	return "(" + strings.Join(all, "|") + ")"
}

// run runs criproxy with this fleet, and returns what it prints and its exit code.
func (f *fleet) run(args ...string) (out, errOut string, code int) {
	f.Helper()
	return f.runAs("criproxy", patiently(args)...)
}

// patiently lets each node take as long to answer as a busy machine may need, unless the test says how long.
func patiently(args []string) []string {
	if args[0] == "dial-stdio" || slices.Contains(args, "-timeout") {
		return args
	}
	return append(slices.Clone(args), "-timeout=4m")
}

// runAs does so with a program of another name.
func (f *fleet) runAs(name string, args ...string) (out, errOut string, code int) {
	f.Helper()
	cmd := bounded.Command(f, name, args...)
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.Env = &o, &e, f.env
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		require.NoError(f, err)
	}
	return o.String(), e.String(), cmd.ProcessState.ExitCode()
}

func TestAnyCommandReachesAnyNode(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.nodes(3)
	for _, address := range []string{"ssh://node-01", "ssh://root@node-01:22", "kube://node-01", "kube://criproxy/criproxy-node-01", "kube://node-01?context=home"} {
		out, errOut, code := f.run("where", "-admin", address, "web-node-01")
		assert.Equal(t, 0, code, address+errOut)
		assert.Contains(t, out, "pod shop/web-node-01 is on kata.io\n", address)
	}
	out, errOut, code := f.run("status", "-admin", "ssh://node-00"+filepath.Join(f.dir, "node-02.sock"), "-o", "json")
	assert.Equal(t, 0, code, errOut)
	assert.Contains(t, out, `"kata.io"`, "the path of the socket")
	out, errOut, code = f.run("where", "-n", "shop", "web-node-02")
	assert.Equal(t, 0, code, errOut)
	assert.Contains(t, out, "pod shop/web-node-02 is on kata.io of node-02\n")
	_, errOut, code = f.run("where", "-n", "shop", "web-node-09")
	assert.Equal(t, 1, code)
	assert.Contains(t, errOut, "criproxy: no pod web-node-09 is on a node")
	// kubectl's flags were ignored beside an address of it, so that its current context was asked.
	for _, address := range []string{"kube://node-01", "kube://criproxy/criproxy-node-01"} {
		for _, flag := range []string{"-admin", "-node"} {
			_, errOut, code = f.run("status", flag, address, "-context", "forbidden")
			assert.NotEqual(t, 0, code, flag+" "+address)
			assert.Contains(t, errOut, "Forbidden", flag+" "+address)
			_, errOut, code = f.run("status", flag, address+"?context=home", "-context", "forbidden")
			assert.Equal(t, 0, code, errOut)
		}
	}
}

func TestANodeInTroubleIsNamedAndSpoilsNothing(t *testing.T) {
	untested.TakesLong(t)
	t.Parallel()
	began := time.Now()
	f := newFleet(t)
	pods := 9
	f.serve("good", nodeWith("good", func(*admin.Report) {}))
	f.serve("sick", nodeWith("sick", func(r *admin.Report) {
		r.Backends[1] = admin.Backend{Name: "kata.io", State: "gone", Since: time.Now().Add(-12 * time.Minute), Pods: &pods, Error: "connection refused"}
	}))
	f.serve("newer", nodeWith("newer", func(r *admin.Report) { r.Version = "9.9.9"; r.Config.ID = "77aa0000" }))
	var hanging atomic.Int32
	answering := nodeWith("any", func(*admin.Report) {})
	elsewhere := func(status http.HandlerFunc) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/status" {
				status(w, r)
				return
			}
			answering.ServeHTTP(w, r)
		})
	}
	f.serve("hangs", elsewhere(func(_ http.ResponseWriter, r *http.Request) { hanging.Add(1); <-r.Context().Done(); hanging.Add(-1) }))
	f.serve("ends", elsewhere(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		_, _ = io.WriteString(w, `{"version": "1"`)
		panic(http.ErrAbortHandler)
	}))
	f.serve("other", elsewhere(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"version": 7, "backends": "two"}`)
	}))
	f.serve("clock", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Date", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat))
		nodeWith("clock", func(r *admin.Report) { r.Backends[0].Since = time.Now().Add(time.Hour - 3*time.Minute) }).ServeHTTP(w, r)
	}))
	f.pods("clock", "ends", "gone", "good", "hangs", "newer", "other", "sick")
	out, errOut, code := f.run("status", "-nodes", "all", "-timeout", "40s")
	assert.Equal(t, 4, code)
	assert.Regexp(t, `^3 of 8 up\nsick: kata.io gone for `+during(12*time.Minute, time.Minute, began)+`, 9 pods\n1 node has configuration 77aa0000, and not 41c20000: newer\n1 node has criproxy 9.9.9, and not `+regexp.QuoteMeta(config.Version)+`: newer\n`, out)
	assert.Regexp(t, `(?m)^good +primary +up +`+during(time.Hour, time.Minute, began), out)
	assert.Regexp(t, `(?m)^clock +primary +up +`+during(3*time.Minute, time.Minute, began), out, "by its own clock")
	assert.Regexp(t, `(?m)^clock: its clock is `+during(time.Hour, time.Second, began.Add(-time.Second))+` ahead of this machine's$`, out)
	for _, want := range []string{"hangs: no answer within 40s", "ends: the connection ended before the answer", "other: reading the answer .*cannot unmarshal", "gone: kubectl: exit status 255: connect to host gone port 22: Connection refused"} {
		assert.Regexp(t, "(?m)^criproxy: "+want, errOut)
	}
	testkit.Eventually(t, "no process hangs on", func() bool { return hanging.Load() == 0 })

	out, _, code = f.run("status", "-nodes", "good,gone,absent", "-o", "json")
	assert.Equal(t, 4, code)
	var all []struct {
		Node, Error string
		Backends    []admin.Backend
	}
	require.NoError(t, json.Unmarshal([]byte(out), &all))
	assert.Len(t, all[0].Backends, 2)
	assert.Equal(t, "good", all[0].Node)
	assert.Contains(t, all[1].Error, "Connection refused")
	assert.Equal(t, "it has no pod of criproxy", all[2].Error)
}

// A node that was named and had the labels was asked twice, and labels that no node has chose nothing beside named nodes.
func TestLabelsChooseNodes(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.nodes(4)
	f.pods("node-00", "node-01", "node-02", "node-03", "gone")
	f.labels(map[string][]string{"pool=gpu": {"node-01", "node-02"}, "pool=gpu,zone=a": {"node-02"}, "pool=old": {"bare", "gone", "node-03"}, "called=all": {"all"}})
	asked := func(args ...string) []string {
		out, errOut, code := f.run(append([]string{"pods", "-o", "json"}, args...)...)
		assert.Equal(t, 0, code, errOut)
		var pods admin.Pods
		require.NoError(t, json.Unmarshal([]byte(out), &pods))
		var names []string
		for _, p := range pods.Pods {
			names = append(names, p.Node)
		}
		return names
	}
	assert.Equal(t, []string{"node-01", "node-02"}, asked("-l", "pool=gpu"))
	assert.Equal(t, []string{"node-02"}, asked("-l", "pool=gpu,zone=a"))
	assert.Equal(t, []string{"node-02", "node-00", "node-01"}, asked("-node", "node-02,node-00", "-l", "pool=gpu"), "each once")
	out, errOut, code := f.runAs("kubectl-criproxy", patiently([]string{"status", "-l", "pool=gpu"})...)
	assert.Equal(t, 0, code, errOut)
	assert.True(t, strings.HasPrefix(out, "2 of 2 up\n"), "not all nodes, as without -l: "+out)

	out, errOut, code = f.run("status", "-l", "pool=old")
	assert.Equal(t, 4, code)
	assert.True(t, strings.HasPrefix(out, "1 of 3 up\n"), out)
	assert.Regexp(t, "(?m)^criproxy: bare: it has no pod of criproxy$", errOut)
	assert.Regexp(t, "(?m)^criproxy: gone: kubectl: .*Connection refused$", errOut)
	out, errOut, code = f.run("status", "-l", "called=all")
	assert.Equal(t, 4, code)
	assert.True(t, strings.HasPrefix(out, "0 of 1 up\n"), "a node of that name: "+out)
	assert.Contains(t, errOut, "criproxy: all: it has no pod of criproxy\n")

	for _, more := range [][]string{nil, {"-node", "node-00"}, {"-node", "all"}} {
		out, errOut, code = f.run(append([]string{"status", "-l", "pool=none"}, more...)...)
		assert.Equal(t, 1, code, more)
		assert.Empty(t, out, more)
		assert.Equal(t, "criproxy: no node has the labels pool=none\n", errOut, more)
	}
	_, errOut, code = f.run("status", "-l", "pool=gpu", "-context", "forbidden")
	assert.Equal(t, 1, code)
	assert.Contains(t, errOut, "asking the API server: kubectl: exit status 1: Error from server (Forbidden)")
	_, errOut, code = f.run("status", "-l", "pool=gpu", "-admin", filepath.Join(f.dir, "node-00.sock"))
	assert.Equal(t, 2, code)
	assert.Contains(t, errOut, "exclude each other")
}

// withPlugins answers as the criproxy of a node with plugins.
func withPlugins(all ...plugins.PluginState) http.Handler {
	mux := nodeWith("any", func(*admin.Report) {})
	mux.HandleFunc("GET /hooks", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(plugins.State{Folder: "/etc/runtime/hookserver.d", Plugins: all})
	})
	return mux
}

// It did not say why a plugin is down, and that there is no plugin on nodes that had not answered.
func TestHooksShowsThePluginsOfSeveralNodes(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	asked := plugins.PointState{Name: "PreRunPodSandbox", PointCounters: plugins.PointCounters{Calls: 7, Failed: 2, Refused: 1, Changes: 4}}
	f.serve("node-1", withPlugins(plugins.PluginState{Name: "cpu.json", State: "ready", Points: []plugins.PointState{asked}},
		plugins.PluginState{Name: "gpu.json", State: "down", Error: "dial unix /run/gpu.sock: connection refused"}))
	f.serve("node-2", withPlugins(plugins.PluginState{Name: "cpu.json", State: "ready"}))
	f.serve("plain", withPlugins())
	f.serve("breaks", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	f.pods("breaks", "gone", "node-1", "node-2", "plain")

	table := `^NODE +PLUGIN +STATE +ASKED +FAILED +REFUSED +CHANGES\nnode-1 +cpu\.json +ready +7 +2 +1 +4\nnode-1 +gpu\.json +down +0 +0 +0 +0\nnode-2 +cpu\.json +ready +0 +0 +0 +0\n` +
		`  node-1: gpu\.json: dial unix /run/gpu\.sock: connection refused\n$`
	out, errOut, code := f.run("hooks", "-nodes", "node-1,node-2,plain")
	assert.Equal(t, 0, code, errOut)
	assert.Regexp(t, table, out)
	out, errOut, code = f.run("hooks", "-nodes", "all")
	assert.Equal(t, 4, code)
	assert.Regexp(t, table, out, "those that do not answer spoil nothing")
	assert.Regexp(t, "(?m)^criproxy: gone: kubectl: .*Connection refused$", errOut)
	assert.Regexp(t, "(?m)^criproxy: breaks: ", errOut)

	for nodes, want := range map[string]string{"plain": "No plugin is registered on these nodes.\n", "plain,gone": "No plugin is registered on the nodes that answered.\n", "gone": ""} {
		out, _, code = f.run("hooks", "-node", nodes)
		assert.Equal(t, want, out, nodes)
		assert.Equal(t, strings.Contains(nodes, "gone"), code == 4, nodes)
	}
}

// A name that no node can have comes from an API server that is not to be trusted.
func TestNamesOfNodesCannotControlTheTerminal(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.serve("good", nodeWith("good", func(*admin.Report) {}))
	f.pods("good", "\x1b[31mred", "-oProxyCommand=x", "../../up", "two\nlines")
	out, errOut, code := f.run("status", "-nodes", "all")
	assert.Equal(t, 4, code)
	assert.True(t, strings.HasPrefix(out, "1 of 5 up\n"), out)
	assert.NotContains(t, out+errOut, "\x1b")
	for _, name := range []string{"red", "ProxyCommand", "up", "lines"} {
		assert.Regexp(t, "(?m)^criproxy: .*invalid name .*"+name+".* for Kubernetes", errOut)
	}
}

func TestAMissingKubectlIsNamed(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	path := f.serve("good", nodeWith("good", func(*admin.Report) {}))
	empty := t.TempDir()
	f.env = append(f.env, "PATH="+empty)
	_, errOut, code := f.run("status", "-nodes", "all")
	assert.Equal(t, 1, code)
	assert.Contains(t, errOut, `asking the API server: kubectl: exec: "kubectl": executable file not found in $PATH`)
	out, errOut, code := f.run("status", "-nodes", path+",ssh://node,kube://ns/pod")
	assert.Equal(t, 4, code)
	assert.True(t, strings.HasPrefix(out, "1 of 3 up\n"), out)
	for _, program := range []string{"ssh", "kubectl"} {
		assert.Contains(t, errOut, `exec: "`+program+`": executable file not found in $PATH`)
	}
}

func TestAddressesCannotBeOptions(t *testing.T) {
	t.Parallel()
	for _, address := range []string{
		"ssh://-oProxyCommand=touch", "ssh://-oProxyCommand=x/run/a.sock", "ssh://-l@host", "ssh://a:b@host", "ssh://host?x", "ssh://host#x", "ssh://host:-p", "ssh://",
		"ssh://ho st", "ssh://$(id)", "ssh://host/a/../b", "kube://-n", "kube://ns/-it", "kube://", "kube://a/b/c", "kube://Node", "kube://node?as=root", "kube://u@node", "http://host", "://",
	} {
		err := run(t.Context(), []string{"status", "-admin", address}, io.Discard, io.Discard)
		var usage *cli.UsageError
		assert.ErrorAs(t, err, &usage, address)
	}
	for _, args := range [][]string{{"-node", "ssh://-oProxyCommand=x,good"}, {"-admin", "/a", "-nodes", "all"}, {"-nodes", "all", "-timeout", "-1s"}} {
		err := run(t.Context(), append([]string{"status"}, args...), io.Discard, io.Discard)
		var usage *cli.UsageError
		assert.ErrorAs(t, err, &usage, args)
	}
	err := run(t.Context(), []string{"dial-stdio", "-admin", "ssh://host"}, io.Discard, io.Discard)
	assert.ErrorContains(t, err, "only sockets of this node")
}

// What is not an admin socket of criproxy cannot be reached through it, whoever may run it.
func TestDialStdioReachesOnlyAdminSockets(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	path := f.serve("docker", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") }))
	_, errOut, code := f.run("dial-stdio", "-admin", path)
	assert.Equal(t, 1, code)
	assert.Contains(t, errOut, "is not criproxy's admin socket")
}

// A real sshd, on the loopback: keys, known hosts and the remote shell are as on a node.
func TestSSHReachesANodeThroughARealSSHD(t *testing.T) {
	untested.TakesLong(t)
	t.Parallel()
	program, err := exec.LookPath("sshd")
	if err != nil {
		program = "/usr/sbin/sshd"
	}
	if _, err := os.Stat(program); err != nil {
		untested.Skip(t, "there is no sshd: apt-get install openssh-server")
	}
	me, err := user.Current()
	require.NoError(t, err)
	f := newFleet(t)
	socket := f.serve("node", nodeWith("node", func(*admin.Report) {}))
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string) {
		t.Helper()
		require.NoError(t, os.WriteFile(at(name), []byte(text), 0o600))
	}
	for _, key := range []string{"host", "user"} {
		out, err := bounded.Command(t, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", at(key)).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	public := readFile(t, at("host.pub"))
	allowed := readFile(t, at("user.pub"))
	write("authorized", string(allowed))

	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	require.NoError(t, l.Close()) // sshd opens it itself
	write("sshd_config", fmt.Sprintf("ListenAddress 127.0.0.1:%d\nHostKey %s\nAuthorizedKeysFile %s\nPidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\nSetEnv PATH=%s\n",
		port, at("host"), at("authorized"), os.Getenv("PATH")))
	if os.Getuid() == 0 {
		require.NoError(t, os.MkdirAll("/run/sshd", 0o755)) // where sshd, run as root, has no rights
	}
	log, err := os.Create(at("log"))
	require.NoError(t, err)
	defer log.Close()
	server := exec.Command(program, "-D", "-e", "-f", at("sshd_config"))
	server.Stderr = log
	require.NoError(t, server.Start())
	t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() }) // it was killed
	testkit.Eventually(t, "sshd listens", func() bool {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	said := func() string { text, _ := os.ReadFile(at("log")); return string(text) }

	// ssh's own configuration says how to reach the node, as for any use of ssh.
	write("known", fmt.Sprintf("[127.0.0.1]:%d %s", port, public))
	write("ssh_config", fmt.Sprintf("Host node\n HostName 127.0.0.1\n Port %d\n User %s\n IdentityFile %s\n IdentitiesOnly yes\n UserKnownHostsFile %s\n", port, me.Username, at("user"), at("known")))
	bin := t.TempDir()
	client, err := exec.LookPath("ssh")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(bin, "ssh"), []byte("#!/bin/sh\nexec "+client+" -F "+at("ssh_config")+` "$@"`+"\n"), 0o755))
	f.env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))

	out, errOut, code := f.run("where", "-admin", "ssh://node"+socket, "web-node")
	require.Equal(t, 0, code, errOut+said())
	assert.Contains(t, out, "pod shop/web-node is on kata.io\n")
	_, errOut, code = f.run("status", "-admin", "ssh://node/run/it's not there")
	assert.Equal(t, 1, code)
	assert.Contains(t, errOut, "there is no admin socket at /run/it's not there", "the remote criproxy's own words")
	require.NoError(t, os.Remove(at("known")))
	_, errOut, code = f.run("status", "-admin", "ssh://node"+socket)
	assert.Equal(t, 1, code)
	assert.True(t, strings.Contains(errOut, "Host key verification failed"), errOut)
}
