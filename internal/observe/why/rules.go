package why

import (
	"slices"
	"strings"
)

// A Rule finds one kind of trouble.
type Rule struct {
	Name     string
	Symptoms []string // words of kubelet's log and events, in lower case; * stands for anything
	Means    string   // what has happened
	Shown    string   // what in the calls shows it
	Not      string   // what it is not, although it looks like it
	Cure     string

	outlives bool // its trouble does not end with the pods that it concerns
	find     func(v *view) []Finding
}

// rules are all rules, the most telling first.
var rules = []*Rule{
	&runtimeChanged, &sandboxReserved, &containerReserved, &stuckTerminating, &notRemoved, &pleg, &pulls, &probes,
	&wiring, &repeated, &flood, &kubeletGap,
}

// Rules returns all rules.
func Rules() []*Rule { return rules }

// complete fills in what a finding has from its rule.
func (r *Rule) complete(f Finding) Finding {
	f.Rule, f.Runbook, f.Sure = r.Name, "docs/runbook.md#"+r.Name, Certain
	if f.Cause != "" {
		f.Sure = Likely
	}
	if f.Cure == "" {
		f.Cure = r.Cure
	}
	f.Cure = strings.ReplaceAll(f.Cure, "REGISTRY", f.About)
	if f.Not == "" {
		f.Not = r.Not
	}
	return f
}

// elsewhere are symptoms whose cause is not in the calls, and what they mean.
var elsewhere = []struct{ symptom, means string }{
	{"crashloopbackoff", crashLoop},
	{"back-off*restarting failed container", crashLoop},
}

const crashLoop = "CrashLoopBackOff: a container ended, or did not start, several times, and kubelet waits before it starts it again. " +
	"The wait is kubelet's and not the runtime's. Why the container ended is in kubectl describe pod (its exit code, OOMKilled, a liveness probe that failed) and in kubectl logs --previous"

// anyFailure is the symptom that kubelet logs with each failure of a pod.
const anyFailure = "error syncing pod"

// Explain returns the rules that know a line of kubelet's log, what the line means if no call is its cause, and the pod that
// the line is about, "" if it names none.
func Explain(line string) (known []*Rule, means, pod string) {
	lower := strings.ToLower(strings.ReplaceAll(line, `\`, ""))
	for _, e := range elsewhere {
		if contains(lower, e.symptom) {
			means = e.means
		}
	}
	for _, r := range rules {
		if slices.ContainsFunc(r.Symptoms, func(s string) bool { return contains(lower, s) && (means == "" || s != anyFailure) }) {
			known = append(known, r)
		}
	}
	if _, rest, ok := strings.Cut(line, ` pod="`); ok {
		pod, _, _ = strings.Cut(rest, `"`)
	}
	return known, means, pod
}

// contains reports whether s contains the parts of pattern in order.
func contains(s, pattern string) bool {
	for _, part := range strings.Split(pattern, "*") {
		_, rest, ok := strings.Cut(s, part)
		if !ok {
			return false
		}
		s = rest
	}
	return true
}
