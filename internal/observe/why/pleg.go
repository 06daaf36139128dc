package why

import (
	"fmt"
	"slices"
	"time"

	"github.com/criproxy/criproxy/internal/observe/capture"
)

var pleg = Rule{
	Name: "pleg",
	Symptoms: []string{"pleg is not healthy", "pleg was last seen active", "pleg: write status", "skipping pod synchronization*pleg", "genericpleg: unable to retrieve pods", "kubelet not ready*pleg",
		"listpodsandbox with filter*deadlineexceeded", "listcontainers with filter*deadlineexceeded", "streampodsandboxes*deadlineexceeded", "streamcontainers*deadlineexceeded", "failed to list pod sandboxes", "failed to list sandboxes for pod", "failed to get pod sandbox status", "containerstatus*deadlineexceeded", "podsandboxstatus*deadlineexceeded", "getpodcontainerstatuses for pod failed", "error determining status", "unable to get pod sandbox status"},
	Means: "kubelet looks at all pods once a second (PLEG), with two lists and the status of what has changed, one after the other. When one of these calls hangs, kubelet sees nothing new; after 3 minutes the node is not ready.",
	Shown: "lists and statuses that kubelet asks for, and that a runtime takes seconds to answer",
	Not:   "the network or the API server: these calls do not leave the node",
	Cure:  "see why the runtime is slow: its log at that time, its goroutines (containerd: kill -USR1), the disk (iostat), and the shim of the container named here, which may be stopped or wait for a disk",
	find:  plegSlow,
}

// plegCalls are the methods with which kubelet looks at its pods.
var plegCalls = []string{"ListPodSandbox", "ListContainers", "StreamPodSandboxes", "StreamContainers", "PodSandboxStatus", "ContainerStatus"}

// plegCall is the time from which a list or status is slow. kubelet makes them every second.
const plegCall = 3 * time.Second

// plegPeriod is how long kubelet waits for its PLEG before the node is not ready.
const plegPeriod = 3 * time.Minute

func plegSlow(v *view) []Finding {
	var found []Finding
	asked := v.of((*call).kubelet, plegCalls...)
	for _, all := range groups(v.slowLooks(), func(c *call) string { return c.method + " " + c.slowest() }) {
		f, worst := shown(all), longest(all)
		quick := filter(asked, func(c *call) bool {
			return c.method == worst.method && c.took < plegCall && c.answered(worst.slowest())
		})
		others := len(groups(all, (*call).object)) - 1
		var lost time.Duration
		for _, c := range all {
			lost += c.took
		}
		if worst.took < hung && lost < max(hung, f.Last.Sub(f.Since)/6) {
			continue // as when many pods start
		}
		f.About = worst.slowest()
		where := " in " + worst.method
		switch {
		case f.About != "":
			f.Backends = []string{f.About}
		case v.blind():
			f.About, where = worst.method, ""
		default:
			f.About, where = "criproxy", where+", while it waits for a runtime (see criproxy events)"
		}
		what := ""
		switch o := worst.object(); {
		case o != "" && others > 0:
			what = fmt.Sprintf(" for %s and %d more", o, others)
		case o != "":
			what = " for " + o
		case worst.about.Items > 0:
			what = ", with " + capture.Count(worst.about.Items, "item")
		}
		rest := fmt.Sprintf("%s%s: it took up to %s, %s within %s; kubelet's view of its pods (PLEG) waits for such calls, and after %s without one the node is not ready", where, what, round(worst.took), times(len(all)), round(f.Last.Sub(f.Since)), round(plegPeriod))
		if len(quick) > 0 {
			rest += fmt.Sprintf(" (%s of %s took %s)", capture.Count(len(quick), "other call"), worst.method, round(median(quick)))
		}
		f.Text, f.past = f.About+" hangs"+rest, f.About+" hung"+rest
		if worst.took >= plegPeriod/3 || lost >= plegPeriod/3 {
			f.Level = Error
		}
		f.decided(worst)
		if i := slices.IndexFunc(quick, func(c *call) bool { return c.began.After(all[len(all)-1].began) }); i >= 0 {
			f.end("", quick[i])
		}
		found = append(found, f)
	}
	return found
}

// slowLooks returns the calls with which kubelet looked at its pods, and that took long, although the runtime answered others.
func (v *view) slowLooks() []*call {
	return v.of(func(c *call) bool {
		return c.kubelet() && c.took >= plegCall && !v.inHang(c) && !v.stood(c.began, c.end())
	}, plegCalls...)
}

var kubeletGap = Rule{
	Name:     "kubelet-gap",
	Symptoms: []string{"nodestatusunknown", "kubelet stopped posting node status", "nodenotready", "housekeeping took longer than", "readiness probe*client.timeout"},
	Means:    "kubelet lists pods every second and asks for the runtime's status every five. When it makes no call at all, although none of its calls waits for an answer, kubelet itself stands still, has ended, or calls something else than criproxy. If criproxy did not run at that time, it says that of itself, and accuses nobody.",
	Shown:    "a time in which kubelet makes no call and waits for no answer; a kubelet whose process is a new one again and again; or a change that says that criproxy stood still, or did not run",
	Not:      "the runtime: kubelet waited for no answer of it in this time",
	Cure:     "see what kubelet's process did in this time: its log, CPU throttling of its cgroup, memory pressure and swap, a stopped or migrated machine, a debugger. For a kubelet that hangs, read its goroutines (/debug/pprof/goroutine) before the restart",
	find:     func(v *view) []Finding { return slices.Concat(gaps(v), v.restarts(), v.standstills(), v.criproxyOff()) },
}

// rhythm is the longest time in which a kubelet that works makes no call. One that has made none for the time noCall does not work.
const (
	rhythm = 10 * time.Second
	noCall = 30 * time.Second
)

func gaps(v *view) []Finding {
	var found []Finding
	var busy time.Time // until then a call was under way, or began
	var before *call
	for _, c := range v.complete() {
		if c.own || !c.kubelet() {
			continue
		}
		gap := c.began.Sub(busy)
		if before != nil && c.pid == before.pid && c.pid != 0 && gap >= rhythm && !v.paused(busy, c.began) && !v.stood(busy, c.began) && v.regular(c.pid, busy) {
			f := shown([]*call{before, c})
			f.About, f.Since, f.Last, f.Over = "kubelet", busy, c.began, true
			f.Pods, f.Backends, f.Show, f.Cause = nil, nil, "-client "+c.from, "kubelet or the whole machine stood still, or its calls went elsewhere"
			f.Text = fmt.Sprintf("kubelet made no call for %s, from %s to %s, and waited for no answer", round(gap), clock(busy), clock(c.began))
			found = append(found, f)
		}
		if end := c.end(); end.After(busy) && !c.stream {
			busy = end
		}
		if c.began.After(busy) || before == nil {
			busy = c.began
		}
		before = c
	}
	if gap := v.now.Sub(busy); before != nil && before.pid != 0 && gap >= noCall && !v.paused(busy, v.now) && !v.stood(busy, v.now) && v.regular(before.pid, busy) {
		f := shown([]*call{before})
		f.About, f.Level, f.Since, f.Last = "kubelet", Error, busy, v.now
		f.Pods, f.Backends, f.Show, f.Cause = nil, nil, "-client "+before.from, "kubelet stands still, has ended, or its calls go elsewhere"
		f.Text = fmt.Sprintf("kubelet has made no call for %s, since %s, and waits for no answer", round(gap), clock(busy))
		f.Cure = "see whether kubelet runs (systemctl status kubelet), and whether its containerRuntimeEndpoint is criproxy's socket; if so, read its log and its goroutines (/debug/pprof/goroutine) before the restart"
		found = append(found, f)
	}
	return found
}

// restarts finds a kubelet that was started again and again.
func (v *view) restarts() []Finding {
	var begun []*call // the first one of each process
	var last *call
	for _, c := range v.calls {
		if c.own || !c.kubelet() || c.pid == 0 || slices.ContainsFunc(begun, func(o *call) bool { return o.pid == c.pid }) {
			continue
		}
		if last != nil && c.began.Sub(last.began) > backOff {
			begun = nil
		}
		begun, last = append(begun, c), c
	}
	if len(begun) <= leastLoop || slices.ContainsFunc(v.calls, func(c *call) bool { // several kubelets at once
		i := slices.IndexFunc(begun, func(o *call) bool { return o.pid == c.pid })
		return i >= 0 && i < len(begun)-1 && c.began.After(begun[i+1].began)
	}) {
		return nil
	}
	f := shown(begun[1:])
	f.About, f.Pods, f.Backends, f.Show = "kubelet", nil, nil, "-client "+last.from
	f.Cause = "it ends by itself, or somebody restarts it"
	f.Text = fmt.Sprintf("kubelet was started anew %s from %s to %s", times(len(begun)-1), clock(f.Since), clock(last.began))
	f.Not = "the runtime: a kubelet that lost it goes on"
	f.Cure = "read how each kubelet ended: journalctl -u kubelet; systemctl status kubelet"
	if !v.loops(begun) {
		f.end("; the last one runs since then")
	}
	return []Finding{f}
}

// regular reports whether a kubelet made calls at least every few seconds in the time before: a recording of some calls
// only shows gaps that are none.
func (v *view) regular(pid int, until time.Time) bool {
	const span, least = 20 * time.Second, 8
	return len(filter(v.complete(), func(c *call) bool {
		return c.pid == pid && slices.Contains([]string{"ListPodSandbox", "ListContainers", "StreamPodSandboxes", "StreamContainers", "Status"}, c.method) && !c.began.After(until) && until.Sub(c.began) < span
	})) >= least
}
