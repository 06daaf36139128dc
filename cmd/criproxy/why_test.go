package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"github.com/criproxy/criproxy/internal/observe/why"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/command/cli"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

var updateWhy = flag.Bool("update-why", false, "write the table of findings and the runbook's entries again")

// recordings are of a real kubelet on criproxy in front of a real containerd, each with one fault.
var recordings = []struct {
	file, fault string
	found       map[string]string // :: rule → parts of its sentences, separated by |; of all findings
}{
	{"healthy", "none: kubelet starts, and two pods", nil},
	{"shim-gone", "a shim is killed; containerd and kubelet replace the pod by themselves", map[string]string{"made-anew": "had ended by"}},
	{"pleg-status", "ContainerStatus takes longer than kubelet waits", map[string]string{"pleg": "primary hung in ContainerStatus for testbed/web-node-943e8e42/app and 1 more: it took up to 4s, 6 times within 19s"}},
	{"pleg-list", "ListContainers takes longer than kubelet waits", map[string]string{"pleg": "primary hung in ListContainers: it took up to 4s, 15 times within 26s"}},
	{"sandbox-reserved", "the CNI plugin takes 25s for one pod", map[string]string{"sandbox-reserved": "primary is too slow for the sandbox of testbed/slow-node-943e8e42: kubelet gave up after 8s, primary goes on, and 1 retry failed because it still has the name"}},
	{"stubborn", "a program ignores SIGTERM", map[string]string{"stuck-terminating": "testbed/stubborn-node-943e8e42/app did not end within its grace period of 7s after its signal, so that primary had to kill it"}},
	{"shim-stopped", "a shim is stopped (SIGSTOP) while its pod is to end", map[string]string{"stuck-terminating": "; it ended at 08:03:07.170; probably: its shim did not answer"}},
	{"stopped-by-crictl", "crictl stops the sandbox of a pod", map[string]string{"made-anew": "crictl, not kubelet, stopped the sandbox of testbed/swept-node-a7cc1fa0 on primary at 22:12:48.254; kubelet made it anew at 22:12:49.298"}},
	{"cni-del", "the CNI plugin fails to remove a network", map[string]string{"stuck-terminating": "testbed/wired-node-943e8e42 could not end on primary: its CNI plugin fails to remove the network (StopPodSandbox failed 11 times"}},
	{"pull-hangs", "a registry sends a part of an image, and no more", map[string]string{"pull": "; kubelet has not asked for registry.test/testbed/app:2 since, which it needs as well"}},
	{"probe", "an exec probe takes 3s and may take 1s; another pod is removed while it starts", map[string]string{"exec-probe": "testbed/probed-node-943e8e42/app: its exec probe took longer than its time-out of 1s, 8 times of 8 on primary"}},
	{"flood", "crictl ps in a loop; the recording has a third of its calls", map[string]string{"flood": "crictl made "}},
	{"kubelet-gap", "kubelet is stopped (SIGSTOP) for 15s", map[string]string{"kubelet-gap": "kubelet made no call for 15s"}},
	{"container-reserved", "an image has a volume with 150,000 files, which containerd copies", map[string]string{"container-reserved": "primary is too slow for the container of testbed/heavy-node-0d898df0/app: kubelet gave up after 4s, primary goes on, and 2 retries failed because it still has the name"}},
	{"no-program", "the program of a container does not exist", map[string]string{"keeps-failing": "testbed/empty-node-0d898df0/app did not start on primary: StartContainer failed 9 times"}},
	{"plugin-refuses", "a plugin of criproxy refuses a pod", map[string]string{"wiring": "a plugin of criproxy refuses it: criproxy: RunPodSandbox: refused at PreRunPodSandbox: plugin policy.json says no: pods of this team must have a budget"}},
	{"plugin-slow", "a plugin of criproxy takes 1.5s for a container", map[string]string{"wiring": "testbed/delayed-node-cb835e40/app waited 1.5s in criproxy before its CreateContainer went to a runtime, once; probably: plugins of criproxy take this time"}},
	{"pull-fails", "four images: no such tag, no such host, no credentials, no registry; and a plugin that is too slow", map[string]string{
		"pull":   "the registry has no such image or tag|the name of the registry, or of a server that belongs to it, cannot be resolved|the registry refuses the credentials|the registry, or a server that belongs to it, cannot be reached",
		"wiring": "a plugin of criproxy does not answer in time, and its policy is Fail"}},
	{"probes-busy", "12 containers with an exec probe every second, and 100 programs that calculate; and a plugin that is too slow", map[string]string{
		"exec-probe": " and 11 other containers: their exec probes took longer", "pleg": "primary hung in ", "wiring": "a plugin of criproxy does not answer in time"}},
	{"cgroup-drivers", "containerd uses the cgroup driver systemd, kubelet cgroupfs", map[string]string{"wiring": "the cgroup drivers differ: the runtime uses systemd, kubelet cgroupfs"}},
	{"no-cri", "containerd is restarted with CRI in disabled_plugins", map[string]string{"runtime": "primary is gone since", "wiring": "the runtime does not serve this version of CRI"}},
	{"runtime-hung", "containerd is stopped (SIGSTOP) for 25s", map[string]string{"runtime": "primary answered nothing for 24s"}},
	{"runtime-upgraded", "containerd 1.7 is replaced by 2.4", map[string]string{"runtime": "primary was gone once|primary was replaced: it is containerd v2.4.2 now"}},
	{"runtime-swapped", "another containerd takes the place of the primary, by a reload, and gives it back", map[string]string{"runtime": "criproxy's configuration changed at 17:46:12.083; of the calls of kubelet, 2 made a new sandbox|criproxy's configuration changed at 17:46:37.140; no call of kubelet failed because of it"}},
	{"runtime-moved", "criproxy is restarted with the address of another containerd as the primary's", map[string]string{"runtime": "criproxy started with this configuration at 21:17:42.922; of the calls of kubelet, 2 made a new sandbox"}},
	{"network-not-ready", "the CNI configuration is removed for 25s", map[string]string{"wiring": "primary reported NetworkReady=false: NetworkPluginNotReady"}},
	{"not-removed", "a file in the folder of a sandbox cannot be removed (chattr +i)", map[string]string{"not-removed": "testbed/kept-node-331b66d9 cannot be removed from primary: RemovePodSandbox was tried 3 times, and the last answer was: failed to delete sandbox"}},
	{"image-held", "an image is used by a container that CRI-O does not show to kubelet, as podman's are, and the disk is too full", map[string]string{"not-removed": " cannot be removed from primary: RemoveImage was tried 5 times, and the last answer was: delete image: image used by"}},
	{"no-handler", "a pod's RuntimeClass has a handler that containerd lacks", map[string]string{"wiring": "no runtime for \"kata\" is configured; it has alt, runc"}},
	{"no-events", "a runtime lacks GetContainerEvents, and kubelet has the feature gate EventedPLEG", map[string]string{"wiring": "kubelet has given up evented PLEG and lists all pods every second again: GetContainerEvents failed 5 times"}},
	{"cni-sleeps", "the CNI plugin sleeps for one pod, and kubelet gives up after 4m; two runtimes", map[string]string{"sandbox-reserved": "primary cannot make the sandbox of testbed/slow-node-fa204616: 4 retries failed because the name was reserved"}},
	{"disk-full", "the disk of one runtime is full; another one pulls the same image", map[string]string{"pull": "busybox:1.29-2 for testbed/bone-node-fa204616: a disk of primary is full (/srv/n2/c1/home/io.containerd.content.v1.content/ingest)"}},
	{"registry-no-tls", "a registry does not speak TLS", map[string]string{"pull": ": what answers at the registry's address speaks neither TLS nor HTTP"}},
	{"shim-stopped-probe", "a shim is stopped (SIGSTOP) whose container has an exec probe", map[string]string{"exec-probe": "; probably: its shim did not answer", "runtime": "primary is slow since 02:11:24.735"}},
	{"crash-loop", "none: programs end at once, again and again, on two runtimes", nil},
	{"runtime-gone", "the socket of a runtime is gone, since before the oldest call that is recorded", map[string]string{"runtime": "kata.io is gone since 02:21:24.219 (cannot be reached"}},
	{"container-paused", "a container with an exec probe is paused for a minute", map[string]string{"exec-probe": "testbed/willow-node-dfa95b6e/app: its exec probe was not run on primary, 21 times: the container is paused"}},
	{"probe-no-program", "the program of an exec probe is not in the image", map[string]string{"exec-probe": "testbed/elder-node-dfa95b6e/app: its exec probe is not run on primary, 42 times: its program is not in the container"}},
	{"no-disk-figures", "a runtime does not say how full its disk is", map[string]string{"keeps-failing": "ImageFsInfo fails on primary, 7 times from 02:37:54.654 on"}},
	{"criproxy-killed", "criproxy is killed, and started again after 15s", map[string]string{"kubelet-gap": "criproxy did not run for 16s, from 02:39:23.300 to 02:39:39.054: it crashed or was killed, and clients could not call any runtime"}},
	{"config-refused", "criproxy gets a configuration that names a runtime which is not there", map[string]string{"wiring": "criproxy refused a new configuration at 02:41:01.482, and goes on with the one before"}},
	{"runtime-removed", "a runtime with a pod is removed from the configuration", map[string]string{"wiring": "old.io is no longer in the configuration since 02:41:1", "keeps-failing": `unknown backend "old.io"`}},
	{"plugin-down", "a plugin of criproxy is killed", map[string]string{"wiring": "plugin policy.json is down since 02:40:18.736"}},
	{"hook-hangs", "a postStart hook waits", map[string]string{"slow-start": "testbed/myrtle-node-dfa95b6e/app: its postStart hook has been running for 1m5s on old.io, and kubelet waits for it"}},
	{"not-killed", "runc does not kill the process of a pod that was deleted", map[string]string{"stuck-terminating": "testbed/hazel-node-dfa95b6e/app has not ended 1m9s after its signal, although its grace period was 2s"}},
	{"image-removed", "crictl removes the image of a pod that may not pull, and its program ends", map[string]string{"pull": "image registry.test/testbed/other:1 is missing on primary for testbed/olive-node-dfa95b6e: kubelet looked for it 4 times since 22:38:58.606, and did not pull it; crictl had removed it at 22:38:57.558"}},
	{"network-lost", "the network namespace of a sandbox is removed", map[string]string{"made-anew": "the sandbox of testbed/avocet-node-0dd7bdc6 on primary had lost its address by 23:14:23.265, and no client had stopped it; kubelet made it anew at 23:14:23.667"}},
	{"start-hangs", "runc waits for a minute before it starts a container", map[string]string{"slow-start": "testbed/teal-node-0dd7bdc6/app waited for its StartContainer, which took 1m6s on primary"}},
	{"runc-forgets", "runc loses the state of a container with an exec probe", map[string]string{"exec-probe": "testbed/merlin-node-0dd7bdc6/app: its exec probe is not run on primary, 18 times: runc does not know the container, which may run on"}},
	{"runtime-killed", "containerd is killed, and started again after 6s", map[string]string{"runtime": "primary was gone once (dial unix"}},
}

// onlyMeasured are the recordings that were measured before anybody who writes rules looked into them. docs/evidence/why.md says who
// has since.
var onlyMeasured = []string{"cni-sleeps", "disk-full", "registry-no-tls", "shim-stopped-probe", "crash-loop", "runtime-gone"}

// A tally says how often a rule was right.
type tally struct {
	found, missed, wrong int // faults that it found and missed, and findings without a fault
	silent               int // recordings without a fault of its kind in which it says nothing
}

// never are words that are false of a recording, and that why said.
var never = map[string]string{"disk-full": "it succeeded", "shim-stopped-probe": "the command is slow"}

func recordingAt(name string) string {
	found, _ := filepath.Glob(filepath.Join("../../testdata/why", name+".jsonl*")) // the pattern is valid
	if len(found) != 1 {
		return name + ".jsonl is not in testdata/why"
	}
	return found[0]
}

// lasts matches the beginning of a headline that says of something that it goes on: a finding that is over must have none. back
// finds when a runtime answered again.
var (
	lasts = regexp.MustCompile(`^\S+ (is|has|hangs|cannot|reports|does not|waits) `)
	back  = regexp.MustCompile(`(?:answers again since|is ready since|succeeded at|ended at|until) ([0-9:.]{12})`)
)

// contradictions returns what cannot be true together in a report.
func contradictions(r why.Report) (all []string) {
	for _, f := range r.Findings {
		if head, _, _ := strings.Cut(f.Headline, ";"); f.Over && f.Level != why.Note && lasts.MatchString(head) {
			all = append(all, "it is over, and goes on: "+f.Text)
		}
		if f.Rule != "runtime" || f.Over || f.Level != why.Error {
			continue
		}
		for _, o := range r.Findings {
			if m := back.FindStringSubmatch(o.Text); m != nil && slices.Equal(o.Backends, f.Backends) && m[1] > f.Since.UTC().Format("15:04:05.000") {
				all = append(all, "it is gone, and answers: "+f.Text+" | "+o.Text)
			}
		}
	}
	return all
}

// asked runs criproxy why, and returns its findings, which must not contradict each other.
func asked(t *testing.T, args ...string) why.Report {
	t.Helper()
	var out, errOut bytes.Buffer
	err := cli.Why(t.Context(), append(args, "-o", "json"), &out, &errOut)
	var r why.Report
	require.NoError(t, json.Unmarshal(out.Bytes(), &r), "%v", err)
	assert.Empty(t, contradictions(r), "%v", args)
	if slices.ContainsFunc(r.Findings, func(f why.Finding) bool { return !f.Over && f.Level != why.Note }) {
		assert.ErrorIs(t, err, cli.ErrReported, "the exit status says that something is wrong")
	} else {
		assert.NoError(t, err)
	}
	return r
}

// said returns what criproxy why prints, whether or not something is wrong now.
func said(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	if err := cli.Why(t.Context(), args, &out, io.Discard); err != nil {
		assert.ErrorIs(t, err, cli.ErrReported)
	}
	return out.String()
}

// A note alone was exit status 1, and what was over as well (issue 42).
func TestWhyFailsOnlyForWhatLasts(t *testing.T) {
	for file, lasts := range map[string]bool{
		"healthy": false, "disk-full": true, "shim-stopped-probe": true, "no-handler": true, // an error or a warning that lasts
		"runtime-killed": false, "network-not-ready": false, "kubelet-gap": false, "no-program": false, // it is over, or its pod is
		"stubborn": false, "runtime-moved": false, // notes
	} {
		err := cli.Why(t.Context(), []string{recordingAt(file)}, io.Discard, io.Discard)
		assert.Equal(t, lasts, errors.Is(err, cli.ErrReported), file)
	}
}

// A headline had 500 characters, and each line of evidence the same error (issue 42).
func TestWhyIsShortAndItsJSONIsWhole(t *testing.T) {
	whole := regexp.MustCompile("[0-9a-f]{33}")
	for _, one := range recordings {
		for _, f := range asked(t, recordingAt(one.file)).Findings {
			assert.LessOrEqual(t, utf8.RuneCountInString(f.Headline), 160)
			assert.NotRegexp(t, whole, f.Headline)
		}
		text := said(t, recordingAt(one.file))
		assert.NotRegexp(t, whole, text, one.file)
		assert.Less(t, strings.Count(text, "\n"), 40, "it fits a screen")
	}
	const last = "[0-9a-f]{64}/held: operation not permitted"
	f := asked(t, recordingAt("not-removed")).Findings[0]
	assert.Regexp(t, last, f.Text)
	assert.Regexp(t, last, f.Evidence[0].Text)
	text := said(t, recordingAt("not-removed"))
	assert.Equal(t, 1, strings.Count(strings.Join(strings.Fields(text), " "), "operation not permitted"), "it says an error once: %s", text)
}

// A finding that is false costs more than one that is missing: each recording has exactly these.
func TestWhyFindsTheFaultInEachRecordingAndNothingElse(t *testing.T) {
	const head = "| recording | fault | found | missed | false |\n|---|---|---|---|---|\n"
	tables := map[bool]string{false: head, true: head} // :: only measured → the table of these recordings
	tallies := map[bool]map[string]*tally{false: {}, true: {}}
	for _, rule := range why.Rules() {
		tallies[false][rule.Name], tallies[true][rule.Name] = &tally{}, &tally{}
	}
	for _, one := range recordings {
		measured := slices.Contains(onlyMeasured, one.file)
		by := tallies[measured]
		r := asked(t, recordingAt(one.file))
		var found, wrong []string
		missed, seen := 0, map[string]bool{}
		for _, f := range r.Findings {
			if words := never[one.file]; words != "" {
				assert.NotContains(t, f.Sentence(), words, one.file)
			}
			parts := strings.Split(one.found[f.Rule], "|")
			if i := slices.IndexFunc(parts, func(part string) bool { return part != "" && strings.Contains(f.Sentence(), part) }); i >= 0 {
				seen[parts[i]] = true
				if !slices.Contains(found, f.Rule) {
					found = append(found, f.Rule)
				}
			} else {
				wrong = append(wrong, f.Text)
				by[f.Rule].wrong++
			}
		}
		for rule, parts := range one.found {
			for _, part := range strings.Split(parts, "|") {
				if seen[part] {
					by[rule].found++
				} else {
					missed++
					by[rule].missed++
					t.Errorf("%s: no finding %s: %q", one.file, rule, part)
				}
			}
		}
		assert.Empty(t, wrong, one.file)
		for rule, its := range by {
			if one.found[rule] == "" && !slices.ContainsFunc(r.Findings, func(f why.Finding) bool { return f.Rule == rule }) {
				its.silent++
			}
		}
		tables[measured] += fmt.Sprintf("| `%s` | %s | %s | %d | %d |\n", one.file, one.fault, strings.Join(found, ", "), missed, len(wrong))
	}
	byRule := "| rule | found | missed | false | silent | found | missed | false | silent |\n|---|---|---|---|---|---|---|---|---|\n"
	for _, rule := range why.Rules() {
		a, b := tallies[false][rule.Name], tallies[true][rule.Name]
		assert.Positive(t, a.found+b.found, "no recording has a fault that the rule %s finds", rule.Name)
		byRule += fmt.Sprintf("| %s | %d | %d | %d | %d | %d | %d | %d | %d |\n", rule.Name, a.found, a.missed, a.wrong, a.silent, b.found, b.missed, b.wrong, b.silent)
	}
	const file, mark = "../../docs/evidence/why.md", "written by go test ./cmd/criproxy -run Why -update-why -->\n"
	current(t, file, "<!-- "+mark, tables[false])
	current(t, file, "<!-- only measured, "+mark, tables[true])
	current(t, file, "<!-- by rule, "+mark, byRule)
}

const endMark = "<!-- to here -->"

// current checks, or updates, the part of a document between a mark and the end mark.
func current(t *testing.T, file, mark, text string) {
	t.Helper()
	before, rest, ok := strings.Cut(string(readFile(t, file)), mark)
	require.True(t, ok, "%s has no %s", file, mark)
	was, after, ok := strings.Cut(rest, endMark)
	require.True(t, ok, "%s has no %s", file, endMark)
	if *updateWhy {
		require.NoError(t, os.WriteFile(file, []byte(before+mark+text+endMark+after), 0o644))
		return
	}
	assert.Equal(t, text, was, "%s is not current: go test ./cmd/criproxy -run Why -update-why", file)
}

func TestRunbookHasEachRuleOfWhy(t *testing.T) {
	var text strings.Builder
	for _, r := range why.Rules() {
		fmt.Fprintf(&text, "\n#### %s\n\n**It means:** %s\n\n**Shown by:** %s.\n\n**It is not:** %s.\n\n**Do:** %s.\n", r.Name, r.Means, r.Shown, r.Not, r.Cure)
	}
	current(t, "../../docs/runbook.md", "<!-- written by go test ./cmd/criproxy -run Why -update-why -->\n", lines120(text.String())+"\n")
}

// lines120 breaks lines at 120 columns.
func lines120(text string) string {
	var b strings.Builder
	for _, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		column := 0
		for i, word := range strings.Fields(line) {
			if i > 0 && column+1+len(word) > 119 {
				b.WriteString("\n")
				column = 0
			} else if i > 0 {
				b.WriteString(" ")
				column++
			}
			b.WriteString(word)
			column += len(word)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func TestWhyAnswersAboutOnePod(t *testing.T) {
	assert.Len(t, asked(t, recordingAt("sandbox-reserved"), "testbed/slow-node-943e8e42").Findings, 1)
	other := asked(t, recordingAt("sandbox-reserved"), "web-node-943e8e42")
	assert.Empty(t, other.Findings)
	assert.Positive(t, other.Seen.Calls, "it says what it has looked at")
	assert.Empty(t, asked(t, recordingAt("pleg-list"), "-since", "1s").Findings, "it was over by then")
	assert.Len(t, asked(t, recordingAt("disk-full"), "bone-node-fa204616").Findings, 1)
	assert.Empty(t, asked(t, recordingAt("disk-full"), "btwo-node-fa204616").Findings, "its runtime has another disk")
	assert.Len(t, asked(t, recordingAt("shim-stopped-probe"), "web-node-fa204616").Findings, 1, "its runtime is slow")
	assert.Empty(t, asked(t, recordingAt("shim-stopped-probe"), "kweb-node-fa204616").Findings, "another runtime is slow")
}

func TestWhyExplainsALineOfKubeletsLog(t *testing.T) {
	line := `E1124 08:02:25.982881 kuberuntime_manager.go:1614] "CreatePodSandbox for pod failed" err="rpc error: code = FailedPrecondition desc = failed to reserve sandbox name \"slow\"" pod="testbed/slow-node-943e8e42"`
	found := asked(t, recordingAt("sandbox-reserved"), line).Findings
	require.Len(t, found, 1)
	assert.Equal(t, "sandbox-reserved", found[0].Rule)
	for line := range strings.Lines(string(readFile(t, "../../testdata/why/kubelet-lines.txt"))) {
		name, said, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch known, means, _ := why.Explain(said); name {
		case "#":
		case "-":
			assert.NotEmpty(t, means, said)
			assert.Empty(t, known, said)
		default:
			assert.True(t, slices.ContainsFunc(known, func(r *why.Rule) bool { return r.Name == name }), "%s: %s", name, said)
		}
	}
	var out bytes.Buffer
	require.NoError(t, cli.Why(t.Context(), []string{"-explain", "pleg"}, &out, io.Discard))
	assert.Contains(t, out.String(), "pleg: kubelet looks at all pods once a second")
	assert.ErrorContains(t, cli.Why(t.Context(), []string{"-explain", "plegg"}, &out, io.Discard), "want one of runtime, sandbox-reserved")
	err := cli.Why(t.Context(), []string{"the weather is fine today"}, io.Discard, io.Discard)
	assert.Equal(t, 2, cli.ExitCode("why", err, io.Discard))
	err = cli.Why(t.Context(), []string{"nothing.jsonl"}, io.Discard, io.Discard)
	assert.EqualError(t, err, "open nothing.jsonl: no such file or directory; want a recording, as criproxy dump or capture writes it")
	assert.Equal(t, 2, cli.ExitCode("why", err, io.Discard), "it could not look")
	socket := filepath.Join(t.TempDir(), "s")
	err = cli.Why(t.Context(), []string{"-admin", socket, "web"}, io.Discard, io.Discard)
	assert.EqualError(t, err, "there is no admin socket at "+socket+"; check that criproxy is running, and that this is its -admin; to look at a recording, name its FILE")
}

// The line was explained only if the recording had the pod, and a crash loop as calls that keep failing (issue 42).
func TestWhyExplainsALineWhateverTheCallsShow(t *testing.T) {
	const (
		crash     = `E1127 02:05:26.4 pod_workers.go:1324] "Error syncing pod, skipping" err="failed to \"StartContainer\" for \"app\" with CrashLoopBackOff: \"back-off 10s restarting failed container=app pod=POD_testbed(1)\"" pod="testbed/POD" podUID="1"`
		backOff   = "Back-off restarting failed container app in pod POD_testbed(1)"
		sandbox   = `"CreatePodSandbox for pod failed" err="rpc error: code = DeadlineExceeded desc = context deadline exceeded" pod="testbed/POD"`
		isKubelet = "The wait is kubelet's and not the runtime's."
		ofSandbox = "sandbox-reserved: kubelet gave up a RunPodSandbox"
	)
	for name, one := range map[string]struct {
		line, pod, recording string
		says                 []string
		code                 int
	}{
		"a crash loop":                     {crash, "crash-node-48f6450f", "crash-loop", []string{isKubelet, "Nothing is wrong with testbed/crash-node-48f6450f"}, 0},
		"an event of a crash loop":         {backOff, "any", "crash-loop", []string{isKubelet, "Nothing is wrong that the calls show"}, 0},
		"a sandbox, and the calls show it": {sandbox, "slow-node-943e8e42", "sandbox-reserved", []string{ofSandbox, "\nThe calls show this:\n\nERROR  testbed/slow-node-943e8e42"}, 1},
		"a sandbox, and they do not":       {sandbox, "crash-node-48f6450f", "crash-loop", []string{ofSandbox, "\nThe calls do not show this. Without the line"}, 0},
		"a crash loop of a pod elsewhere":  {crash, "elsewhere", "crash-loop", []string{isKubelet}, 2},
		"a sandbox of a pod elsewhere":     {sandbox, "elsewhere", "crash-loop", []string{ofSandbox}, 2},
		"a line, and nothing to look into": {sandbox, "elsewhere", "none.jsonl", []string{ofSandbox}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errOut bytes.Buffer
			path := one.recording
			if !strings.HasSuffix(path, ".jsonl") {
				path = recordingAt(path)
			}
			err := cli.Why(t.Context(), []string{path, strings.ReplaceAll(one.line, "POD", one.pod)}, &out, &errOut)
			for _, words := range one.says {
				assert.Contains(t, out.String(), words)
			}
			assert.NotContains(t, out.String(), "keeps-failing")
			assert.Equal(t, one.code, cli.ExitCode("why", err, &errOut), "%s", &errOut)
		})
	}
}

// Of a call that had waited for a second, view said 25µs, and why 1s (issue 42).
func TestViewAndWhySayHowLongACallIsUnderWay(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, cli.View(t.Context(), []string{"-method", "ExecSync|Version", recordingAt("shim-stopped-probe")}, &out, io.Discard))
	assert.Regexp(t, `02:12:04.220 .* ExecSync .* 1\.0\ds  under way\n.* 02:12:05.225 .* Version .* under way\n$`, out.String(), "to the end of the recording")
	assert.Contains(t, said(t, recordingAt("shim-stopped-probe")), "02:12:04.220  ExecSync testbed/pr-node-fa204616/app 1s under way")
}

// What had begun before the recording was said to have begun with it (issue 42).
func TestWhatTheRecordingBeginsWithMayBeOlder(t *testing.T) {
	for file, since := range map[string]string{
		"disk-full":       "since 2026-11-27 02:20:18 or before (the calls begin there), last seen",
		"registry-no-tls": "since 2026-11-27 02:16:24, last seen",
		"runtime-killed":  "since 2026-11-24 14:35:00, last seen", // a change
	} {
		assert.Contains(t, said(t, recordingAt(file)), since, file)
	}
}

func TestWhyCannotSayThatAPodNobodyAskedAboutIsWell(t *testing.T) {
	var out, errOut bytes.Buffer
	err := cli.Why(t.Context(), []string{"nosuchpod", "../../testdata/why/healthy.jsonl"}, &out, &errOut)
	assert.ErrorContains(t, err, "is about nosuchpod: either the name is wrong")
	var blind *cli.BlindError
	assert.ErrorAs(t, err, &blind)
	assert.Empty(t, out.String())
	assert.ErrorIs(t, cli.Why(t.Context(), []string{"nosuchpod", recordingAt("no-cri")}, &out, &errOut), cli.ErrReported)
	assert.True(t, strings.HasPrefix(out.String(), "No call is about nosuchpod. On the node:\n\nERROR"), "what is wrong with the node may not be what the user asks about: %s", &out)
	assert.ErrorContains(t, err, "criproxy view ../../testdata/why/healthy.jsonl shows the names")
	assert.NotContains(t, err.Error(), "-since")
	err = cli.Why(t.Context(), []string{"-since", "1s", "nosuchpod", "../../testdata/why/healthy.jsonl"}, io.Discard, &errOut)
	assert.ErrorContains(t, err, "without -since, why looks at all of the recording")
	out.Reset()
	assert.NoError(t, cli.Why(t.Context(), []string{"web", "../../testdata/why/healthy.jsonl"}, &out, &errOut))
	assert.Contains(t, out.String(), "; about testbed/web-node-943e8e42, the only pod with web in its name: ")
	assert.ErrorContains(t, cli.Events(t.Context(), []string{"calls.jsonl"}, io.Discard, io.Discard), "criproxy view shows the calls of a recording")
	err = cli.Why(t.Context(), []string{"wbe-node-943e8e42", "../../testdata/why/healthy.jsonl"}, io.Discard, &errOut)
	assert.ErrorContains(t, err, `none is about wbe-node-943e8e42 (did you mean "web-node-943e8e42"?): either`)
}

// Asked about a pod, why began with a runtime that the pod had nothing to do with, and said at the end, or not at all, how the pod
// is (issue 42).
func TestWhySaysFirstHowThePodIs(t *testing.T) {
	for pod, first := range map[string]string{
		"web-node-fa204616": "Nothing is wrong with web-node-fa204616 that its 6 calls show. On its runtime:\n\nWARNING  primary\n",
		"pr-node-fa204616":  "WARNING  ", // a finding is about it
		"node":              "No call is about node, but some are about testbed/fz-node-fa204616, testbed/idle-node-fa204616, testbed/kfullpull-node-fa204616 and 6 more. On the node:\n\nWARNING  ",
	} {
		text := said(t, pod, recordingAt("shim-stopped-probe"))
		assert.True(t, strings.HasPrefix(text, first), "%s: %s", pod, text)
	}
}

// The metric, the page and the command have the same findings.
func TestFindingsAreCountedByRuleAndLevel(t *testing.T) {
	var last time.Time
	look := lookedAt(t, recordingAt("pull-hangs"), func(ev *capture.Event) { last = ev.Time })
	n := look.Count(last)
	assert.Equal(t, 1, n[[2]string{"pull", "warning"}])
	assert.Contains(t, n, [2]string{"pleg", "warning"}, "a rule that finds nothing counts zero")
	assert.Zero(t, n[[2]string{"pleg", "warning"}])
	var report why.Report
	require.NoError(t, json.Unmarshal(look.JSON(), &report))
	assert.Equal(t, asked(t, recordingAt("pull-hangs")).Findings, report.Findings)
	look.Forget(last.Add(time.Hour))
	assert.Equal(t, map[string]int{"kubelet": 1}, look.Report(why.Options{}).Seen.Clients, "only the pull is left, which is under way")
}
