package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/cookiejar"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/command/cli"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/observe/why"
	"github.com/criproxy/criproxy/internal/testing/testkit"
	"github.com/criproxy/criproxy/internal/testing/untested"
)

// realNodes are nodes with a criproxy of their own, which runs as a process.
func realNodes(t *testing.T, names ...string) (f *fleet, nodes []*process) {
	f = newFleet(t)
	for _, name := range names {
		p := startedProcess(t)
		require.NoError(t, os.Symlink(config.AdminBeside(p.front), filepath.Join(f.dir, name+".sock")))
		nodes = append(nodes, p)
	}
	f.pods(names...)
	return f, nodes
}

// follow runs criproxy, or kubectl-criproxy if the first argument is kubectl, until stop is called. said returns what it
// has printed so far.
func (f *fleet) follow(args ...string) (said func() string, stop func() (all string)) {
	var o output
	ctx, cancel := context.WithCancel(f.Context())
	name := "criproxy"
	if args[0] == "kubectl" {
		name, args = "kubectl-criproxy", args[1:]
	}
	cmd := exec.CommandContext(ctx, name, patiently(args)...)
	cmd.Stdout, cmd.Stderr, cmd.Env = &o, &o, f.env
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	require.NoError(f, cmd.Start())
	f.Cleanup(cancel)
	return o.String, func() string { cancel(); _ = cmd.Wait(); return o.String() }
}

func TestTailOfSeveralNodesIsOneStory(t *testing.T) {
	t.Parallel()
	f, nodes := realNodes(t, "node-1", "node-2")
	nodes[0].runPod("web-node-1", "")
	said, stop := f.follow("tail", "-nodes", "node-1,node-2,absent", "-past", "-follow")
	testkit.Eventually(t, "what happened before", func() bool { return strings.Contains(said(), "StartContainer") })
	nodes[1].runPod("web-node-2", "beta.io")
	nodes[0].runPod("other", "")
	testkit.Eventually(t, "what happens now", func() bool { return strings.Count(said(), "StartContainer") == 3 })
	out := stop()
	assert.Regexp(t, `(?m)^TIME          NODE    CLIENT `, out)
	var starts, times []string
	for _, line := range strings.Split(out, "\n") {
		if found := regexp.MustCompile(`^([\d:.]+)  (node-\d) .*StartContainer .* default/(\S+?)/main`).FindStringSubmatch(line); found != nil {
			times, starts = append(times, found[1]), append(starts, found[2]+" "+found[3])
		}
	}
	assert.Equal(t, []string{"node-1 web-node-1", "node-2 web-node-2", "node-1 other"}, starts, out)
	assert.IsIncreasing(t, times)

	// One pod: kubectl finds its node.
	said, stop = f.follow("kubectl", "tail", "-n", "shop", "web-node-2", "-past", "-follow", "-o", "json")
	_ = said
	shop := testkit.PodConfig("web-node-2")
	shop.Metadata.Namespace = "shop"
	nodes[1].run(shop)
	testkit.Eventually(t, "the pod", func() bool { return strings.Contains(said(), "StartContainer") })
	for line := range strings.Lines(stop()) {
		if strings.HasPrefix(line, "criproxy: ") {
			continue // how far it is, on a slow machine
		}
		var call struct {
			Node  string
			About struct{ Pod, Namespace string }
		}
		require.NoError(t, json.Unmarshal([]byte(line), &call), line)
		assert.Equal(t, "node-2", call.Node)
		assert.Equal(t, "shop", call.About.Namespace, line)
	}
}

func TestEachCommandAsksSeveralNodes(t *testing.T) {
	untested.TakesLong(t)
	t.Parallel()
	f, nodes := realNodes(t, "node-1", "node-2")
	f.pods("node-1", "node-2", "lost")
	nodes[1].runPod("vm", "beta.io")

	out, errOut, code := f.run("events", "-nodes", "all")
	assert.Equal(t, 4, code)
	assert.Regexp(t, `(?m)^[\d:. -]+  node-1  beta.io .*is up`, out)
	assert.Regexp(t, `(?m)^[\d:. -]+  node-2  beta.io .*is up`, out)
	assert.Regexp(t, "(?m)^criproxy: lost: kubectl: .*Connection refused", errOut)
	before := filepath.Join(t.TempDir(), "before.json")
	require.NoError(t, os.WriteFile(before, []byte("{}"), 0o600))
	_, errOut, code = f.run("status", "-nodes", "all", "-exit-code", "-before", before)
	assert.Equal(t, 2, code)
	assert.Contains(t, errOut, "-before compares one node with its own state")
	out, _, code = f.run("events", "-node", "node-1,node-2", "-o", "json")
	assert.Equal(t, 0, code)
	assert.Contains(t, out, `{"node":"node-2","`)

	out, errOut, code = f.run("hooks", "-nodes", "all", "-o", "json")
	assert.Equal(t, 4, code)
	var plugged []struct{ Node, Folder string }
	require.NoError(t, json.Unmarshal([]byte(out), &plugged))
	require.Len(t, plugged, 3)
	assert.Equal(t, "node-2", plugged[2].Node)
	assert.NotEmpty(t, plugged[2].Folder)
	assert.Regexp(t, "(?m)^criproxy: lost: kubectl: .*Connection refused", errOut)

	out, errOut, code = f.run("instances", "-node", "node-1", "-o", "json")
	require.Equal(t, 0, code, errOut)
	var found []cli.Instance
	require.NoError(t, json.Unmarshal([]byte(out), &found))
	require.NotEmpty(t, found)
	assert.Equal(t, "node-1", found[0].Node)

	out, errOut, code = f.run("doctor", "-node", "node-1,node-2", "-connect", filepath.Join(f.dir, "none.sock"), "-o", "json")
	assert.Equal(t, 1, code, errOut)
	var diagnoses []struct {
		Node     string
		Findings []why.Finding
	}
	require.NoError(t, json.Unmarshal([]byte(out), &diagnoses))
	assert.Equal(t, "node-2", diagnoses[1].Node)
	assert.NotEmpty(t, diagnoses[1].Findings)
	f.labels(map[string][]string{"pool=gpu": {"node-1", "node-2"}})
	out, _, _ = f.run("doctor", "-l", "pool=gpu", "-connect", filepath.Join(f.dir, "none.sock"))
	assert.Regexp(t, `(?m)^node-1, node-2: error: `, out)
	assert.Contains(t, out, "0 of 2 nodes have no finding.")

	out, errOut, code = f.run("why", "-node", "node-1,node-2")
	assert.Contains(t, []int{0, 1}, code, errOut)
	assert.Contains(t, out, " of 2 nodes have no finding.")
	assert.Contains(t, out, "Not all calls of this time are recorded on node-")

	dir := t.TempDir()
	_, errOut, code = f.run("dump", "-nodes", "all", filepath.Join(dir, "calls.jsonl.zst"))
	assert.Equal(t, 4, code, errOut)
	r, err := capture.Open(filepath.Join(dir, "calls-node-2.jsonl.zst"))
	require.NoError(t, err)
	assert.Equal(t, "node-2", r.Header().Node)
	require.NoError(t, r.Close())
	assert.FileExists(t, filepath.Join(dir, "calls-node-1.jsonl.zst"))
	assert.NoFileExists(t, filepath.Join(dir, "calls-lost.jsonl.zst"))
	_, errOut, code = f.run("dump", "-nodes", "all")
	assert.Equal(t, 2, code)
	assert.Contains(t, errOut, "want a FILE")

	_, errOut, code = f.run("support", "-nodes", "all", filepath.Join(dir, "bundle.tar.gz"))
	assert.Equal(t, 4, code, errOut)
	bundle := readFile(t, filepath.Join(dir, "bundle-node-1.tar.gz"))
	assert.True(t, bytes.HasPrefix(bundle, []byte("\x1f\x8b")), "gzip")
	assert.NoFileExists(t, filepath.Join(dir, "bundle-lost.tar.gz"))
	_, errOut, code = f.run("support", "-admin", "ssh://node-1", filepath.Join(dir, "one.tar.gz"))
	assert.Equal(t, 0, code, errOut)
	assert.FileExists(t, filepath.Join(dir, "one.tar.gz"))
}

func TestCheckTriesAConfigurationOnEachNode(t *testing.T) {
	untested.TakesLong(t)
	t.Parallel()
	f, nodes := realNodes(t, "node-1", "node-2")
	nodes[1].runPod("vm", "beta.io")
	// The same file fits each node: its runtimes have the names that both have, and it listens where node-1 does.
	write := func(lines ...string) string {
		path := filepath.Join(t.TempDir(), "config.yaml")
		require.NoError(t, os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
		return path
	}
	file := write("backends:", "- address: "+nodes[1].dir+"/0.sock")
	out, errOut, code := f.run("check", "-f", file, "-node", "node-1,node-2")
	assert.Equal(t, 1, code, errOut)
	assert.True(t, strings.HasPrefix(out, "This works on 1 of 2 nodes.\n  node-2: backend beta.io has 1 pod,"), out)
	out, _, code = f.run("check", "-f", file, "-node", "node-1,node-2", "-o", "json")
	assert.Equal(t, 1, code)
	var all []struct {
		Node    string
		Errors  []string
		Changes []config.Change
	}
	require.NoError(t, json.Unmarshal([]byte(out), &all))
	assert.Empty(t, all[0].Errors)
	assert.NotEmpty(t, all[0].Changes)
	assert.Len(t, all[1].Errors, 1)

	// A mistake is found before any node is asked to serve it, and is said once.
	out, errOut, code = f.run("check", "-f", write("backend: []"), "-node", "node-1,node-2")
	assert.Equal(t, 4, code, out)
	assert.Contains(t, errOut, "node-1: ")
	assert.Contains(t, errOut, `backend: unknown key (did you mean "backends"?)`)
}

func TestThePluginOfKubectlAsksAllNodes(t *testing.T) {
	untested.TakesLong(t)
	t.Parallel()
	f := newFleet(t)
	f.nodes(3)
	plugin := func(args ...string) (string, string, int) { return f.runAs("kubectl-criproxy", args...) }
	patient := func(args ...string) (string, string, int) { return plugin(patiently(args)...) }
	out, errOut, code := patient("status")
	assert.Equal(t, 0, code, errOut)
	assert.True(t, strings.HasPrefix(out, "3 of 3 up\n"), out)
	for _, args := range [][]string{{"-n", "shop", "where", "web-node-01"}, {"where", "web-node-01", "-n", "shop"}, {"--namespace=shop", "--context", "home", "where", "web-node-01"}} {
		out, errOut, code = patient(args...)
		assert.Equal(t, 0, code, errOut)
		assert.Equal(t, "pod shop/web-node-01 is on kata.io of node-01\n", strings.SplitAfter(out, "\n")[0])
	}
	out, errOut, code = patient("where", "web-node-02")
	assert.Equal(t, 0, code, "kubectl's own namespace does not have it: "+errOut)
	assert.Contains(t, out, "is on kata.io of node-02\n")
	out, errOut, code = patient("where", "-n", "shop", "deployment/web")
	assert.Equal(t, 0, code, errOut)
	for _, name := range []string{"00", "01", "02"} {
		assert.Contains(t, out, "pod shop/web-node-"+name+" is on kata.io of node-"+name+"\n")
	}
	_, errOut, code = plugin("status", "--context", "forbidden")
	assert.Equal(t, 1, code)
	assert.Contains(t, errOut, "Forbidden")
	out, _, _ = plugin()
	assert.Contains(t, out, "Flags follow the command", "it does not serve")
	out, _, _ = plugin("-connect=/run/none.sock")
	assert.Contains(t, out, "Flags follow the command", "it does not serve")
	for _, args := range [][]string{{"status", "--context", "-n"}, {"status", "--kubeconfig", "a\nb"}, {"status", "-admin", "kube://node?context=-n"}, {"status", "-l", "--as=root"}, {"tail", "-n", "a\nb", "web"}, {"tail", "-n", "-A", "web"}} {
		_, errOut, code = plugin(args...)
		assert.Equal(t, 2, code, errOut)
	}
}

// kubectl criproxy ui POD leads to the page of the pod's node; of several pods, to a page of their nodes.
func TestThePluginShowsPodsInABrowser(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.nodes(3)
	ui := func(args ...string) (link string) {
		said, stop := f.follow(append([]string{"kubectl", "ui"}, args...)...)
		t.Cleanup(func() { stop() })
		testkit.Eventually(t, "the link is printed", func() bool {
			text := said()
			link = regexp.MustCompile(`http://\S+|$`).FindString(text)
			return strings.Contains(text, "Ctrl-C")
		})
		return link
	}
	assert.True(t, strings.HasSuffix(ui("-n", "shop", "web-node-01"), "#pod=web-node-01"))

	link := ui("-n", "shop", "web-node-00", "web-node-02")
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	browser := &http.Client{Jar: jar, Timeout: testkit.Patience}
	response, err := browser.Get(link)
	require.NoError(t, err)
	response.Body.Close()
	var shown struct {
		Fragment string
		Nodes    []struct {
			Name   string
			Report admin.Report
		}
	}
	testkit.Eventually(t, "both nodes have answered", func() bool {
		response, err := browser.Get(link[:strings.Index(link, "?")] + "nodes")
		require.NoError(t, err)
		defer response.Body.Close()
		require.NoError(t, json.NewDecoder(response.Body).Decode(&shown))
		return len(shown.Nodes) == 2 && shown.Nodes[0].Report.Version+shown.Nodes[1].Report.Version == config.Version+config.Version
	})
	assert.Equal(t, "node-00 node-02", shown.Nodes[0].Name+" "+shown.Nodes[1].Name)
	assert.Equal(t, "pod=web-node-00%7Cweb-node-02", shown.Fragment)
}

func TestKubectlCompletesThePlugin(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	for words, want := range map[string]string{
		"st":            "(?s)^status\t[^\n]+\n:4\n$",
		"status --exit": "^--exit-code\texit with [^\n]+\n:0\n$",
		"tail --no":     "^--node\t[^\n]+\n--nodes\t[^\n]+\n:0\n$",
		"none --":       "^:0\n$",
	} {
		out, errOut, code := f.runAs("kubectl_complete-criproxy", strings.Fields(words)...)
		assert.Equal(t, 0, code, errOut)
		assert.Regexp(t, want, out)
	}
}

// recordedAt answers requests for events with calls that began at these times, by a clock that is off.
func recordedAt(off time.Duration, at ...time.Time) http.Handler {
	mux := nodeWith("any", func(*admin.Report) {})
	mux.HandleFunc("GET /events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Date", time.Now().Add(off).UTC().Format(http.TimeFormat))
		w.Header().Set(admin.RecordedHeader, strconv.Itoa(2*len(at)))
		var seq uint64
		_ = capture.WriteTo(w, capture.JSONL, &capture.FileHeader{Version: 1, Created: at[0].Add(off)}, nil, func(ev *capture.Event) error {
			if seq == uint64(2*len(at)) {
				return io.EOF
			}
			*ev = capture.Event{Seq: seq + 1, Call: seq/2 + 1, Kind: capture.Start, Time: at[seq/2].Add(off), Method: "/runtime.v1.RuntimeService/Version"}
			if seq%2 == 1 {
				ev.Kind = capture.End
			}
			seq++
			return nil
		})
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	return mux
}

func TestCallsStandWhereTheyHappened(t *testing.T) {
	untested.TakesLong(t)
	t.Parallel()
	f := newFleet(t)
	began := time.Now().Add(-time.Minute).Truncate(time.Second)
	f.serve("right", recordedAt(0, began, began.Add(20*time.Second)))
	f.serve("ahead", recordedAt(time.Hour, began.Add(10*time.Second)))
	f.serve("hangs", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	f.pods("right", "ahead", "hangs")
	asked := time.Now()
	said, stop := f.follow("tail", "-nodes", "all", "-past", "-follow", "-timeout", "30s")
	testkit.Eventually(t, "all three", func() bool { return strings.Count(said(), " Version ") == 3 })
	out := stop()
	var nodes, times []string
	for _, line := range regexp.MustCompile(`(?m)^(\S+)  (right|ahead)  client `).FindAllStringSubmatch(out, -1) {
		times, nodes = append(times, line[1]), append(nodes, line[2])
	}
	assert.Equal(t, []string{"right", "ahead", "right"}, nodes, out)
	assert.IsIncreasing(t, times, "by this machine's clock")
	assert.Regexp(t, `criproxy: ahead: its clock is `+during(time.Hour, time.Second, asked.Add(-time.Second))+` ahead of this machine's; times are shown by this machine's clock`, out)
}

func TestADumpThatIsCutOffSaysSo(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	path := f.serve("ends", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ended, end := context.WithCancel(r.Context())
		end()
		recordedAt(0, time.Now()).ServeHTTP(w, r.WithContext(ended))
		panic(http.ErrAbortHandler) // as if the process had ended
	}))
	file := filepath.Join(f.dir, "calls.jsonl")
	_, errOut, code := f.run("dump", file, "-admin", path)
	assert.Equal(t, 1, code)
	assert.Contains(t, errOut, "ended while it sent its calls, as in a handover; only its first calls, 2 events, are in "+file+": dump again, into another file")
}

func TestAPageIsOfOneRecordingOfEachNode(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := readFile(t, "../../testdata/why/healthy.jsonl")
	var files []string
	for _, name := range []string{"node-1.jsonl", "node-2.jsonl"} {
		files = append(files, filepath.Join(dir, name))
		require.NoError(t, os.WriteFile(files[len(files)-1], text, 0o600))
	}
	var usage *cli.UsageError
	assert.ErrorAs(t, run(t.Context(), append([]string{"view"}, files...), io.Discard, io.Discard), &usage)
	assert.ErrorAs(t, run(t.Context(), []string{"view", "-html", "-", files[0], files[0]}, io.Discard, io.Discard), &usage)
	calls := regexp.MustCompile(`criproxy: (\d+) calls`)
	count := func(files ...string) int {
		var errOut bytes.Buffer
		require.NoError(t, run(t.Context(), append([]string{"view", "-html", filepath.Join(t.TempDir(), "page.html")}, files...), io.Discard, &errOut))
		n, err := strconv.Atoi(calls.FindStringSubmatch(errOut.String())[1])
		require.NoError(t, err)
		return n
	}
	one := count(files[0])
	assert.Positive(t, one)
	assert.Equal(t, 2*one, count(files...))
}
