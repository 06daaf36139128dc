package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/testing/bounded"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
	"github.com/criproxy/criproxy/internal/testing/testkit"
	"github.com/criproxy/criproxy/internal/testing/untested"
)

// block returns the first block of code of a language in a section of a document.
func block(t *testing.T, document, section, language string) string {
	t.Helper()
	text := readFile(t, filepath.Join("..", "..", "docs", document))
	_, rest, found := strings.Cut(string(text), "\n## "+section+"\n")
	require.True(t, found, "%s has no section %q", document, section)
	_, rest, found = strings.Cut(rest, "\n```"+language+"\n")
	require.True(t, found, "%s, %s: no block of %q", document, section, language)
	code, _, found := strings.Cut(rest, "\n```\n")
	require.True(t, found)
	return code + "\n"
}

func TestPluginInDocsCompiles(t *testing.T) {
	untested.TakesLong(t)
	t.Parallel()
	file := filepath.Join(t.TempDir(), "main.go")
	require.NoError(t, os.WriteFile(file, []byte(block(t, "hooks.md", "Writing a plugin", "go")), 0o600))
	build := bounded.Build(t, "build", "-o", os.DevNull, file)
	build.Dir = filepath.Join("..", "..")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

func TestProfileInDocsIsServed(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	const section = "A worked example"
	for name, language := range map[string]string{"jobs.proto": "proto", "jobs.yaml": "yaml"} {
		require.NoError(t, os.WriteFile(at(name), []byte(block(t, "profile.md", section, language)), 0o600))
	}

	_, want, _ := strings.Cut(block(t, "profile.md", section, "console"), "\n") // without the command
	assert.Equal(t, want, strings.TrimPrefix(says(t, "check", "-profile", at("jobs.yaml"), "-proto", at("jobs.proto")), "\n"))

	for _, name := range []string{"jobs.sock", "east.sock"} { // messages of the test's own API have the same form
		muxtest.Serve(t, at(name), muxtest.Unary(func(_ context.Context, method string, _ *codec.Frame) (*codec.Frame, error) {
			if strings.HasSuffix(method, "/List") {
				return muxtest.Bytes("ListResponse", `books { id: "7" title: "`+name+`" }`), nil
			}
			return muxtest.Bytes("Book", `id: "7" title: "`+name+`"`), nil
		}))
	}
	served(t, at("all.sock"), "-profile", at("jobs.yaml"), "-proto", at("jobs.proto"), "-state-dir", "none", "-hooks", "none",
		"-connect", at("jobs.sock")+",east:"+at("east.sock"), "-listen", at("all.sock"))
	call := func(method string, request *codec.Frame) *codec.Frame {
		t.Helper()
		reply := &codec.Frame{}
		require.NoError(t, testkit.Dialed(t, at("all.sock")).Invoke(t.Context(), "/jobs.v1.Jobs/"+method, request, reply))
		return reply
	}
	muxtest.EqualProto(t, "ListResponse", `books { id: "7" title: "jobs.sock" } books { id: "east__7" title: "east.sock" }`, call("List", muxtest.Bytes("ListRequest", "")))
	muxtest.EqualProto(t, "Book", `id: "east__7" title: "east.sock"`, call("Get", muxtest.Bytes("GetRequest", `book_id: "east__7"`)))
}

// The page of the first node, as far as it needs no kubelet: its commands are accepted, what it says that they show they
// show, and a pod of its RuntimeClass gets to the second runtime. testbed/vm follows the page with a kubelet.
func TestThePageOfTheFirstNodeHolds(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	packaged, err := os.ReadFile(filepath.Join("..", "..", "packaging", "config.yaml"))
	require.NoError(t, err)
	here := strings.NewReplacer("/run/criproxy.sock", p.front, "/run/containerd/containerd.sock", p.runtimes[0].Path, "/run/kata/containerd.sock", p.runtimes[1].Path)
	write := func(more string) {
		t.Helper()
		text := here.Replace(string(packaged)+more) + "stateDir: " + filepath.Join(p.dir, "state") + "\ndataPath: own\n"
		require.NoError(t, os.WriteFile(p.config+".new", []byte(text), 0o600))
		require.NoError(t, os.Rename(p.config+".new", p.config))
	}
	write("")
	check := func() string {
		t.Helper()
		var out strings.Builder
		require.NoError(t, run(t.Context(), []string{"check", "-config", p.config}, &out, &out), "%s", &out)
		assert.NotContains(t, out.String(), "warning", "the page says nothing of one")
		return out.String()
	}
	assert.Contains(t, check(), "What this would change in the criproxy that runs is unknown: there is no admin socket")
	p.launch()
	testkit.Eventually(t, "status is as step 6 says", func() bool {
		text, r := p.status()
		return r.Ready && !strings.Contains(text, "OUTAGES") && strings.Contains(text, ", ready") && r.Backends[0].State == "up"
	})
	text, _, _ := p.doctor()
	well := "Nothing here prevents criproxy from working."
	if strings.Contains(text, "kubelet bypasses criproxy") { // a kubelet of this machine, which other tests may have started
		well = "Errors found: 1."
	}
	assert.Contains(t, text, well)

	const section = "6. Look"
	second := block(t, "first-node.md", section, "yaml")
	write(second)
	testkit.Eventually(t, "both runtimes are up", func() bool {
		_, r := p.status()
		return len(r.Backends) == 2 && r.Backends[0].State == "up" && r.Backends[1].State == "up"
	})
	assert.Contains(t, check(), "Nothing would change in the criproxy that runs.")
	for _, line := range strings.Split(strings.TrimSpace(second), "\n") {
		assert.Contains(t, string(packaged), "#"+line+"\n", "the file that comes with the package has the same example")
	}

	_, rest, _ := strings.Cut(string(readFile(t, filepath.Join("..", "..", "docs", "first-node.md"))), "```yaml\napiVersion")
	objects, _, _ := strings.Cut("apiVersion"+rest, "```")
	class, pod, ok := strings.Cut(objects, "---\n")
	require.True(t, ok)
	var runtimeClass struct {
		Metadata struct{ Name string }
		Handler  string
	}
	var first struct {
		Metadata struct{ Name string }
		Spec     struct {
			RuntimeClassName string `yaml:"runtimeClassName"`
		}
	}
	require.NoError(t, yaml.Unmarshal([]byte(class), &runtimeClass))
	require.NoError(t, yaml.Unmarshal([]byte(pod), &first))
	assert.Equal(t, runtimeClass.Metadata.Name, first.Spec.RuntimeClassName)
	_, err = runtimeapi.NewRuntimeServiceClient(p.connect(p.front)).RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{
		Config: testkit.PodConfig(first.Metadata.Name), RuntimeHandler: runtimeClass.Handler})
	require.NoError(t, err)
	pods := p.pods().Pods
	require.Len(t, pods, 1)
	assert.Equal(t, "first kata.io", pods[0].Name+" "+pods[0].Backend)
}
