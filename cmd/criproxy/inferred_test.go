package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/observe/why"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A recording of a criproxy that did not record conditions, or from which they were cut out, opens everywhere, and who
// draws conclusions from it says from what. The page's own words are tested in a browser: TestPodsAreLanesWithOutages.
func TestARecordingWithoutConditionsSaysThatOutagesAreInferred(t *testing.T) {
	t.Parallel()
	p := startedProcess(t)
	sandbox, _ := p.runPod("web", "beta.io")
	p.restartRuntime(true, false)
	client := runtimeapi.NewRuntimeServiceClient(p.connect(p.front))
	for range 4 {
		_, err := client.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: sandbox})
		require.Error(t, err)
	}
	_, err := client.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{}) // the cache answers
	require.NoError(t, err)
	p.restartRuntime(false, true)
	newer, cut, older := filepath.Join(p.dir, "newer.jsonl"), filepath.Join(p.dir, "cut.jsonl"), filepath.Join(p.dir, "older.jsonl")
	_, err = p.ask("dump", newer)
	require.NoError(t, err)
	data, err := os.ReadFile(newer)
	require.NoError(t, err)
	var without, promised strings.Builder
	for line := range strings.Lines(string(data)) {
		var ev map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &ev))
		switch ev["kind"] {
		case "change":
			continue
		case "file":
			promised.WriteString(line)
			delete(ev, "changes")
			for _, b := range ev["backends"].([]any) {
				for _, key := range []string{"state", "since", "why", "pods"} {
					delete(b.(map[string]any), key)
				}
			}
			changed, err := json.Marshal(ev)
			require.NoError(t, err)
			line = string(changed) + "\n"
		default:
			promised.WriteString(line)
		}
		without.WriteString(line)
	}
	require.NoError(t, os.WriteFile(cut, []byte(promised.String()), 0o600))
	require.NoError(t, os.WriteFile(older, []byte(without.String()), 0o600))

	const said = "No conditions of runtimes are recorded here: outages are inferred from calls."
	for path, infers := range map[string]bool{newer: false, cut: true, older: true} {
		var text, asJSON, out strings.Builder
		_ = run(t.Context(), []string{"why", path}, &text, &text) // it fails if something is wrong now
		assert.Equal(t, infers, strings.Contains(text.String(), said), "%s", &text)
		_ = run(t.Context(), []string{"why", "-o", "json", path}, &asJSON, &out) // likewise
		var r why.Report
		require.NoError(t, json.Unmarshal([]byte(asJSON.String()), &r), "%s%s", &asJSON, &out)
		assert.Equal(t, infers, r.Seen.Inferred, path)
		require.NotEmpty(t, r.Findings, path)
		assert.Equal(t, infers, strings.Contains(text.String(), "the cache answered for it"), "%s", &text)
		require.NoError(t, run(t.Context(), []string{"view", path}, &out, &out), "%s", &out)
		require.NoError(t, run(t.Context(), []string{"view", "-html", path + ".html", path}, &out, &out), "%s", &out)
	}
	p.end()
}
