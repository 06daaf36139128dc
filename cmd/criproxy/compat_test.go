package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/hook/plugin"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// writeCompat makes a file of each kind that this version writes, in a folder of testdata/compat: the recordings; the state
// folder of a process that was killed while a runtime was gone; and the JSON of its admin socket. A plugin's pod is known
// by its uid in the cgroup of the process that serves the plugin, which is this one.
func writeCompat(t *testing.T, dir string) {
	p := newProcess(t)
	hooks := p.hooks()
	served := plugin.Plugin{Name: "priority", Folder: hooks, Socket: filepath.Join(p.dir, "priority.sock"),
		PreRunPodSandbox: func(context.Context, *plugin.Pod) (*plugin.PodAnswer, error) { return nil, nil }}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- served.Run(ctx) }()
	defer func() { cancel(); assert.NoError(t, <-ended) }()
	cmd := p.launch()
	client := runtimeapi.NewRuntimeServiceClient(p.connect(p.front))
	cgroups := readFile(t, "/proc/self/cgroup")
	uid := regexp.MustCompile(`(?m)[^/\n]{8,}$`).FindString(string(cgroups))
	require.NotEmpty(t, uid, "this process must run in a cgroup that has a name, as with systemd-run --scope")
	serving := pluginsPod("priority-5x7")
	serving.Metadata.Uid = uid
	_, err := client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: serving})
	require.NoError(t, err)
	for _, pod := range []string{"web", "db"} { // before each, the plugin is asked, and its pod identified
		_, err := client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: podOn(map[string]string{"db": "beta.io"}[pod], pod)})
		require.NoError(t, err)
	}
	_, err = client.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	require.NoError(t, err)
	p.incident()
	p.restartRuntime(true, false)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "state"), 0o755))
	for _, ending := range compatRecordings {
		_ = os.Remove(filepath.Join(dir, "calls."+ending)) // of an earlier attempt
		p.says("dump", filepath.Join(dir, "calls."+ending))
	}
	for _, command := range []string{"status", "pods"} {
		answer := p.says(command, "-o", "json")
		require.NoError(t, os.WriteFile(filepath.Join(dir, command+".json"), []byte(answer), 0o644))
	}
	state := filepath.Join(p.dir, "state")
	testkit.Eventually(t, "all files are written", func() bool {
		evidence, _ := os.ReadFile(filepath.Join(state, "evidence.json"))
		changes, _ := os.ReadFile(filepath.Join(state, "changes.jsonl"))
		known, _ := filepath.Glob(filepath.Join(state, "*.known"))
		recorded, _ := filepath.Glob(filepath.Join(state, "record*"))
		servers, _ := os.ReadFile(filepath.Join(state, "hook-servers.json"))
		return strings.Contains(string(servers), "priority-5x7") && strings.Contains(string(evidence), "out of order") && strings.Contains(string(changes), "gone") && len(known) == 2 && len(recorded) > 0
	})
	require.NoError(t, cmd.Process.Kill())
	_, _ = cmd.Process.Wait()
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "state")))
	require.NoError(t, os.CopyFS(filepath.Join(dir, "state"), os.DirFS(state)))
}

// hooks makes a folder of plugins, and a configuration that names it.
func (p *process) hooks() (folder string) {
	folder = filepath.Join(p.dir, "hooks")
	require.NoError(p, os.Mkdir(folder, 0o700))
	p.write("hooks: " + folder + "\n")
	return folder
}

// pluginsPod is a pod that serves the plugin priority, as a controller would make it.
func pluginsPod(name string) *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Uid: name, Namespace: "kube-system"},
		Labels:   map[string]string{"app": "priority"},
	}
}

// compatRecordings are the endings of files of calls.
var compatRecordings = []string{"jsonl", "pcapng", "binlog", "jsonl.zst", "pcapng.zst", "binlog.zst"}

// Cache files, which a process of another boot does not use, are read by a test of internal/backend.
func TestThisVersionReadsWhatReleasesHaveWritten(t *testing.T) {
	t.Parallel()
	if *updatePromises != "" {
		writeCompat(t, filepath.Join(compat, *updatePromises))
	}
	releases, err := filepath.Glob(filepath.Join(compat, "*", "state"))
	require.NoError(t, err)
	require.NotEmpty(t, releases)
	for _, state := range releases {
		dir := filepath.Dir(state)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			for _, ending := range compatRecordings {
				var out strings.Builder
				require.NoError(t, run(t.Context(), []string{"view", filepath.Join(dir, "calls."+ending)}, &out, &out), ending)
				assert.Contains(t, out.String(), "StartContainer", ending)
				assert.Contains(t, out.String(), "out of order", ending)
			}
			var r admin.Report
			var pods admin.Pods
			for name, answer := range map[string]any{"status.json": &r, "pods.json": &pods} {
				data := readFile(t, filepath.Join(dir, name))
				require.NoError(t, json.Unmarshal(data, answer), name)
			}
			require.Len(t, r.Backends, 2)
			assert.Equal(t, "gone", r.Backends[1].State)
			assert.NotEmpty(t, r.Errors)
			var names []string
			for _, pod := range pods.Pods {
				names = append(names, pod.Backend+"/"+pod.Name)
			}
			assert.Subset(t, names, []string{"primary/web", "beta.io/db"})

			p := newProcess(t)
			require.NoError(t, os.CopyFS(filepath.Join(p.dir, "state"), os.DirFS(state)))
			recorded, err := filepath.Glob(filepath.Join(p.dir, "state", "recorder-*.b*"))
			require.NoError(t, err)
			for i, path := range recorded { // another criproxy of this machine may have the process id in the name
				require.NoError(t, os.Rename(path, filepath.Join(p.dir, "state", fmt.Sprintf("recorder-%d%s", 1<<22+1+i, filepath.Ext(path)))))
			}
			missing := `{"remote-endpoint": "` + p.dir + `/none.sock", "runtime-hooks": ["PreRunPodSandbox"], "failure-policy": "Fail"}`
			require.NoError(t, os.WriteFile(filepath.Join(p.hooks(), "priority.json"), []byte(missing), 0o600))
			p.launch()
			p.remembers()
			client := runtimeapi.NewRuntimeServiceClient(p.connect(p.front))
			_, err = client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: testkit.PodConfig("web")})
			assert.Error(t, err, "the plugin may refuse it, and is missing")
			_, err = client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: pluginsPod("priority-9k3")})
			assert.NoError(t, err, "the pod that served the plugin comes back")
			p.says("status")
			var events strings.Builder
			require.NoError(t, run(context.Background(), []string{"events", "-since", "100000h", "-o", "json", "-admin", config.AdminBeside(p.front)}, &events, &events))
			assert.Contains(t, events.String(), `"gone"`, "the outage before the crash")
			for _, complaint := range []string{"cannot be read", "is broken", "Some of the latest errors"} {
				assert.Zero(t, p.logged(complaint), complaint)
			}
		})
	}
}
