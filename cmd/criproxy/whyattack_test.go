package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/command/cli"
)

// eventsOf returns the lines of a recording: the header, and the events.
func eventsOf(t *testing.T, name string) []map[string]any {
	t.Helper()
	data := readFile(t, recordingAt(name))
	if strings.HasSuffix(recordingAt(name), ".zst") {
		zip, err := zstd.NewReader(nil)
		require.NoError(t, err)
		data, err = zip.DecodeAll(data, nil)
		require.NoError(t, err)
		zip.Close()
	}
	var all []map[string]any
	for line := range bytes.Lines(data) {
		lines := json.NewDecoder(bytes.NewReader(line))
		lines.UseNumber()
		var one map[string]any
		require.NoError(t, lines.Decode(&one))
		all = append(all, one)
	}
	return all
}

// written writes events to a file.
func written(t *testing.T, events []map[string]any) string {
	t.Helper()
	var b bytes.Buffer
	for _, one := range events {
		require.NoError(t, json.NewEncoder(&b).Encode(one))
	}
	path := filepath.Join(t.TempDir(), "calls.jsonl")
	require.NoError(t, os.WriteFile(path, b.Bytes(), 0o600))
	return path
}

// moved returns an event with its time changed.
func moved(t *testing.T, event map[string]any, by time.Duration) map[string]any {
	at, err := time.Parse(time.RFC3339Nano, event["time"].(string))
	require.NoError(t, err)
	return with(event, "time", at.Add(by).Format(time.RFC3339Nano))
}

// with returns an event with another value.
func with(event map[string]any, key string, value any) map[string]any {
	next := map[string]any{}
	for k, v := range event {
		next[k] = v
	}
	next[key] = value
	return next
}

// rulesOf returns which rules find something in a recording.
func rulesOf(t *testing.T, path string) []string {
	t.Helper()
	var rules []string
	for _, f := range asked(t, path).Findings {
		if !slices.Contains(rules, f.Rule) {
			rules = append(rules, f.Rule)
		}
	}
	slices.Sort(rules)
	return rules
}

// A damage changes the events of a recording, of which the first is its header.
type damage func(events []map[string]any) []map[string]any

// damages returns what may happen to recordings: they are cut off, joined, or made while other things happen.
func damages(t *testing.T) map[string]damage {
	each := func(change func(i, n int, e map[string]any) map[string]any) func([]map[string]any) []map[string]any {
		return func(events []map[string]any) (next []map[string]any) {
			for i, e := range events {
				if e["kind"] != "file" {
					e = change(i, len(events), e)
				}
				if e != nil {
					next = append(next, e)
				}
			}
			return next
		}
	}
	happens := func(what string, at map[string]any) map[string]any {
		change := map[string]any{"what": what, "time": at["time"], "pid": 7}
		return map[string]any{"kind": "change", "time": at["time"], "mono_ns": at["mono_ns"], "change": change}
	}
	all := map[string]damage{
		"a reload": func(events []map[string]any) []map[string]any {
			half := len(events) / 2
			return slices.Insert(events, half, happens("reloaded", events[half]))
		},
		"a handover": func(events []map[string]any) (next []map[string]any) { // the old process finishes the calls under way
			half := len(events) / 2
			old := map[any]bool{}
			for _, e := range events[:half] {
				old[e["call"]] = true
			}
			next = append(events[:half:half], happens("handover", events[half]))
			for _, e := range events[half:] {
				if e["call"] == nil || !old[e["call"]] {
					next = append(next, e)
				}
			}
			return next
		},
		"kubelet is restarted twice": each(func(i, n int, e map[string]any) map[string]any {
			if peer, ok := e["peer"].(map[string]any); ok {
				return with(e, "peer", with(peer, "pid", 77+3*i/n))
			}
			return e
		}),
		"without conditions": each(func(_, _ int, e map[string]any) map[string]any {
			if e["kind"] == "change" {
				return nil
			}
			return e
		}),
		"the clock is set back by an hour": each(func(i, n int, e map[string]any) map[string]any {
			if i > n/2 {
				return moved(t, e, -time.Hour)
			}
			return e
		}),
		"the clock is set forward by an hour": each(func(i, n int, e map[string]any) map[string]any {
			if i > n/2 {
				return moved(t, e, time.Hour)
			}
			return e
		}),
		"kubelet is restarted": each(func(i, n int, e map[string]any) map[string]any {
			if peer, ok := e["peer"].(map[string]any); ok && i > n/2 {
				return with(e, "peer", with(peer, "pid", 77))
			}
			return e
		}),
		"the runtime has another name": each(func(i, n int, e map[string]any) map[string]any {
			if e["backend"] != nil && i > n/2 {
				return with(e, "backend", "other.io")
			}
			return e
		}),
		"the messages are missing": each(func(_, _ int, e map[string]any) map[string]any {
			if e["kind"] == "request" || e["kind"] == "reply" {
				return with(with(e, "raw", ""), "truncated", true)
			}
			return e
		}),
		"the runtimes' legs are missing": each(func(_, _ int, e map[string]any) map[string]any {
			if e["backend"] != nil && e["kind"] != "change" {
				return nil
			}
			return e
		}),
		"a third of the events is missing": func(events []map[string]any) []map[string]any {
			n := len(events)
			lost := with(with(events[n/3], "kind", "missed"), "missed", n/3)
			return slices.Concat(events[:n/3], []map[string]any{lost}, events[2*n/3:])
		},
		"no client has a name": each(func(_, _ int, e map[string]any) map[string]any { return with(e, "peer", nil) }),
		"a second client makes the same calls": func(events []map[string]any) (next []map[string]any) {
			for _, e := range events {
				next = append(next, e)
				if e["kind"] == "file" || e["kind"] == "change" {
					continue
				}
				e = with(e, "call", fmt.Sprint(1_000_000)+fmt.Sprint(e["call"]))
				e["call"] = json.Number(e["call"].(string))
				if peer, ok := e["peer"].(map[string]any); ok {
					e["peer"] = with(with(peer, "name", "agent"), "pid", 4242)
				}
				next = append(next, e)
			}
			return next
		},
		"another recording follows": func(events []map[string]any) []map[string]any {
			return slices.Concat(events, events[1:len(events)/2])
		},
	}
	for _, part := range []int{10, 30, 50, 70, 90} {
		all[fmt.Sprintf("cut off at %d%%", part)] = func(events []map[string]any) []map[string]any { return events[:len(events)*part/100] }
		all[fmt.Sprintf("begins at %d%%", part)] = func(events []map[string]any) []map[string]any {
			return append(events[:1:1], events[max(1, len(events)*part/100):]...)
		}
	}
	return all
}

// A rule may find less in a damaged recording, but nothing that was not done.
func TestWhyFindsNothingNewInADamagedRecording(t *testing.T) {
	for _, file := range []string{"healthy", "pull-hangs", "runtime-hung"} {
		whole := rulesOf(t, recordingAt(file))
		if file == "runtime-hung" {
			whole = append(whole, "pleg") // without the runtime's side it is only clear that calls hang
		}
		events := eventsOf(t, file)
		for name, damage := range damages(t) {
			for _, rule := range rulesOf(t, written(t, damage(slices.Clone(events)))) {
				assert.Contains(t, whole, rule, "%s, %s", file, name)
			}
		}
	}
}

// What happens to criproxy, kubelet and other clients meanwhile does not hide a fault.
func TestWhyFindsTheFaultInADamagedRecording(t *testing.T) {
	all := damages(t)
	meanwhile := []string{"a reload", "without conditions", "kubelet is restarted twice", "a second client makes the same calls"}
	for file, more := range map[string][]string{
		"cni-del": {"a handover", "begins at 50%"}, "no-handler": {"a handover", "begins at 50%"}, "pull-hangs": nil, "runtime-killed": {"a handover"},
	} {
		whole, events := rulesOf(t, recordingAt(file)), eventsOf(t, file)
		for _, name := range slices.Concat(meanwhile, more) {
			require.Contains(t, all, name)
			assert.Equal(t, whole, rulesOf(t, written(t, all[name](slices.Clone(events)))), "%s, %s", file, name)
		}
	}
}

// A recording of a criproxy that did not record conditions, or from which they were cut out, says from what it concludes. The
// page's own words are tested in a browser: TestPodsAreLanesWithOutages.
func TestARecordingWithoutConditionsSaysThatOutagesAreInferred(t *testing.T) {
	events := eventsOf(t, "runtime-killed")
	cut := damages(t)["without conditions"](slices.Clone(events))
	older := slices.Clone(cut)
	older[0] = with(older[0], "changes", false)
	for path, infers := range map[string]bool{written(t, events): false, written(t, cut): true, written(t, older): true} {
		assert.Equal(t, infers, strings.Contains(said(t, path), "No conditions of runtimes are recorded here: outages are inferred from calls."))
		r := asked(t, path)
		assert.Equal(t, infers, r.Seen.Inferred)
		assert.NotEmpty(t, r.Findings)
	}
}

// An older kubelet speaks v1alpha2, which has the same messages.
func TestWhyFindsTheSameInAnOlderVersionOfCRI(t *testing.T) {
	for _, one := range recordings[:5] {
		events := eventsOf(t, one.file)
		for i, e := range events {
			if method, ok := e["method"].(string); ok {
				events[i] = with(e, "method", strings.Replace(method, "/runtime.v1.", "/runtime.v1alpha2.", 1))
			}
		}
		assert.Equal(t, rulesOf(t, recordingAt(one.file)), rulesOf(t, written(t, events)), one.file)
	}
}

func TestWhyIsSilentAboutAnotherAPI(t *testing.T) {
	events := eventsOf(t, "pull-hangs")
	for i, e := range events {
		if method, ok := e["method"].(string); ok {
			events[i] = with(e, "method", "/library.v1.Books/"+method[strings.LastIndex(method, "/")+1:])
		}
	}
	assert.Empty(t, rulesOf(t, written(t, events[:1])), "no calls")
	assert.Empty(t, rulesOf(t, written(t, events)))
}

func TestWhyCannotLookIntoAnEmptyFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "calls.jsonl")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	assert.Equal(t, 2, cli.ExitCode("why", cli.Why(t.Context(), []string{path}, io.Discard, io.Discard), io.Discard))
}
