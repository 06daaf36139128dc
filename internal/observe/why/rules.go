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
	tried    bool // kubelet tries again until it succeeds, or until the pods end
	find     func(v *view) []Finding
}

// rules are all rules, the most telling first.
var rules = []*Rule{
	&runtimeChanged, &sandboxReserved, &containerReserved, &stuckTerminating, &notRemoved, &pleg, &pulls, &slowStart, &probes,
	&wiring, &repeated, &madeAnew, &flood, &kubeletGap,
}

// Rules returns all rules.
func Rules() []*Rule { return rules }

// complete fills in what a finding has from its rule.
func (r *Rule) complete(f Finding) Finding {
	f.Headline = Headline(f.Text)
	f.Rule, f.Runbook, f.Sure = r.Name, "docs/runbook.md#"+r.Name, Certain
	if f.Cause != "" {
		f.Sure = Likely
	}
	if f.Cure == "" {
		f.Cure = r.Cure
	}
	f.Cure = strings.ReplaceAll(f.Cure, "REGISTRY", f.About)
	if f.sandbox != "" && len(f.Pods) < 2 {
		f.Cure = strings.ReplaceAll(f.Cure, "the sandbox's id", "the sandbox's id ("+f.sandbox+")")
	}
	if f.Not == "" {
		f.Not = r.Not
	}
	return f
}

// elsewhere are symptoms whose cause is not in the calls that rules read, and what they mean.
var elsewhere = []struct{ symptom, means string }{
	{"crashloopbackoff", crashLoop},
	{"back-off*restarting failed container", crashLoop},
	{"createcontainerconfigerror", "kubelet cannot put the container together, and has not asked the runtime: a ConfigMap, a Secret or a key of one is missing, or an image that runs as root may not. The line says which"},
	{"poststarthook failed", hookFailed},
	{"prestophook failed", hookFailed},
	{"errimageneverpull", "The image is not on the node, and imagePullPolicy is Never. Load it onto the node, or change the policy"},
	{"invalidimagename", "The name of the image is not valid, so kubelet does not ask the runtime for it"},
	{"get imagestatus from image service failed", noImages},
	{"listimages with filter from image service failed", noImages},
	{"streamimages from image service failed", noImages},
	{"failed to inspect image", noImages},
	{"containerstatus*notfound", "kubelet asked about a container that was removed meanwhile. It is harmless"},
	{"stats*from runtime service failed", noStats},
	{"metrics from runtime service failed", noStats},
	{"listmetricdescriptors from runtime service failed", noStats},
	{"error getting cri prometheus metric", noStats},
	{"unable to find cri stats for sandbox", noStats},
	{"cri implementation must be updated to support listpodsandboxstats", noStats},
	{"imagefsinfo from image service failed", noStats},
	{"failed to get summary stats", noStats},
	{"exec cmd from runtime service failed", streams},
	{"attach container from runtime service failed", streams},
	{"portforward from runtime service failed", streams},
	{"resources from runtime service failed", "The runtime did not change the CPU or memory of a pod that runs. The pod goes on with what it had"},
	{"checkpointcontainer from runtime service failed", "The runtime did not write a checkpoint of a container. The container is not concerned"},
	{"reopencontainerlog from runtime service failed", "kubelet has rotated the log of a container, and the runtime did not begin a new file. The log may grow or lack lines"},
	{"runtimeconfig from runtime service failed", "The runtime did not say which cgroup driver it uses. If it answered Unimplemented, it is older than this call, and kubelet uses its own cgroupDriver"},
	{"image garbage collection failed once", "kubelet did not yet know how full the disk for images is. It is harmless at its start; later lines say that it failed multiple times in a row"},
	{"detected running containers after a successful killpod", "The runtime said that it had stopped the containers of a pod, and its next list still had one that runs. kubelet tries again"},
	{"runtime status check may not have completed yet", "kubelet has just started, and waits for the first answer of the runtime. If it goes on, see criproxy status"},
}

const (
	crashLoop = "CrashLoopBackOff: a container ended, or did not start, several times, and kubelet waits before it starts it again. " +
		"The wait is kubelet's and not the runtime's. Why the container ended is in kubectl describe pod (its exit code, OOMKilled, a liveness probe that failed) and in kubectl logs --previous"
	hookFailed = "A postStart or preStop hook of the container failed. The hook is the pod's; if it is a command, criproxy view -method ExecSync -full shows it with its exit code"
	noImages   = "kubelet asked the runtime which images it has, and the runtime failed. Pods wait until it answers: criproxy view -method 'ImageStatus|ListImages' -status '!OK' shows the answers"
	noStats    = "kubelet asked the runtime for the use of CPU, memory or disk, and the runtime failed. Pods run on; kubectl top and evictions lack these numbers"
	streams    = "A kubectl exec, attach or port-forward failed. The container is not concerned: criproxy view -method 'Exec|Attach|PortForward' shows the answers"
)

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
