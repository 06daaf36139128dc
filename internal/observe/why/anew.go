package why

import (
	"fmt"
	"slices"
	"time"
)

var madeAnew = Rule{
	Name:     "made-anew",
	Symptoms: []string{"sandbox changed, it will be killed", "no ready sandbox for pod can be found"},
	Means:    "A sandbox or a container ended, and kubelet had not asked for that: another client stopped it, its shim or its first process was killed, or the node restarted. kubelet makes it anew. No call fails.",
	Shown:    "StopPodSandbox or StopContainer of a client that is not kubelet, or a PodSandboxStatus by which a sandbox that nobody had stopped is no longer ready, or has no address; then kubelet's call that makes it anew",
	Not:      "a pod that was deleted or moved: kubelet stops those itself. A container that ends by itself and is restarted is not this either",
	Cure:     "find who stopped it, by the client's name and process, or what killed the shim: the OOM killer (dmesg) and the runtime's log say so. To end a pod, delete it in Kubernetes: kubelet makes anew what others stop",
	find:     func(v *view) []Finding { return slices.Concat(v.stoppedByOthers(), v.endedByItself()) },
}

// anew are the calls with which kubelet makes anew what others stop.
var anew = map[string]string{"StopPodSandbox": "RunPodSandbox", "StopContainer": "CreateContainer"}

// stoppedByOthers finds what a client stopped that is not kubelet, and kubelet made anew.
func (v *view) stoppedByOthers() []Finding {
	var found []Finding
	stops := v.of(func(c *call) bool { return c.ok() && !c.kubelet() && v.remadeAfter(c) != nil }, "StopPodSandbox", "StopContainer")
	for _, all := range groups(stops, func(c *call) string { return c.from + c.method + c.place() }) {
		last := all[len(all)-1]
		again := v.remadeAfter(last)
		f := shown(append(all, again))
		what := last.object()
		if last.method == "StopPodSandbox" {
			what = "the sandbox of " + what
		}
		when := "at "
		if len(all) > 1 {
			when = times(len(all)) + ", the last time at "
		}
		f.About = last.target()
		f.Text = fmt.Sprintf("%s, not kubelet, stopped %s on %s %s%s; kubelet made it anew at %s", last.from, what, on(last), when, clock(last.began), clock(again.began))
		f.Cure = fmt.Sprintf("find out who runs %s on this node (process %d): kubelet makes anew what others stop. To end a pod, delete it in Kubernetes", last.from, last.pid)
		if !v.loops(all) {
			f.end("")
		}
		found = append(found, f)
	}
	return found
}

// remadeAfter returns the call with which kubelet began to make anew what a call of another client stopped; nil if it had stopped it
// itself, or has not made it anew.
func (v *view) remadeAfter(stop *call) *call {
	for _, c := range v.calls {
		switch {
		case !c.kubelet() || stop.place() == "" || c.place() != stop.place():
		case c.began.Before(stop.began) && c.method == stop.method && c.id() == stop.id():
			return nil
		case c.began.After(stop.began) && c.method == anew[stop.method]:
			if c.began.Sub(stop.end()) > retry(c.method) {
				return nil
			}
			return c
		}
	}
	return nil
}

// endedByItself finds pods whose sandboxes kubelet made anew because they had ended, and nobody had stopped them.
func (v *view) endedByItself() []Finding {
	var found []Finding
	made := v.of((*call).kubelet, "RunPodSandbox")
	seen := v.of(func(c *call) bool { return c.ok() && c.said != "" && c.place() != "" }, "PodSandboxStatus")
	for _, of := range groups(seen, (*call).place) {
		var show, ends []*call // ends are those that saw the end of a sandbox
		for _, one := range groups(of, (*call).id) {
			i := slices.IndexFunc(made, func(c *call) bool { return c.place() == one[0].place() && c.began.After(one[0].began) })
			if i < 0 || made[i].began.Sub(one[0].end()) > retry("RunPodSandbox") || v.mayBeStopped(one[0]) {
				continue
			}
			ends, show = append(ends, one[0]), append(show, one[0], made[i])
		}
		n := len(ends)
		if n == 0 {
			continue
		}
		f, again, first, last := shown(show), show[n*2-1], ends[0], ends[n-1]
		f.About = last.target()
		what := "ended"
		f.Cause = "its shim, or the process that keeps its namespaces, was killed"
		f.Cure = "look for the OOM killer in dmesg at that time, and for the end of the shim in the runtime's log. If nobody killed it, see whether the runtime was updated or the node restarted"
		if last.said == noAddress {
			what, f.Cause = "lost its address", "its network namespace is gone"
			f.Cure = "find out who removed it from /run/netns (ip netns delete, a clean-up of /run, a network plugin)"
		}
		when := "by " + clock(last.end())
		if n > 1 {
			when = fmt.Sprintf("%s, first by %s and last by %s", times(n), clock(first.end()), clock(last.end()))
		}
		f.Text = fmt.Sprintf("the sandbox of %s on %s had %s %s, and no client had stopped it; kubelet made it anew at %s", f.About, on(last), what, when, clock(again.began))
		if !v.loops(ends) {
			f.end("")
		}
		found = append(found, f)
	}
	return found
}

// leastLoop is how often something must happen, and not stop since, so that it will probably go on.
const leastLoop = 3

// loops reports whether what some calls show happened several times, and has not stopped since.
func (v *view) loops(all []*call) bool {
	if len(all) < leastLoop {
		return false
	}
	every := between(all)
	return every <= backOff && v.now.Sub(all[len(all)-1].began) <= every+every/2
}

// mayBeStopped reports whether a client may have stopped the sandbox that is no longer ready, or a runtime have failed to make it.
// kubelet sees within a minute that a sandbox has ended.
func (v *view) mayBeStopped(seen *call) bool {
	from, made := seen.began.Add(-time.Minute), true
	for _, c := range v.calls {
		switch {
		case !c.began.Before(seen.end()):
		case c.method == "RunPodSandbox" && c.place() == seen.place():
			from, made = later(from, c.began), c.ok()
		case (c.method == "StopPodSandbox" || c.method == "RemovePodSandbox") && c.id() == seen.id():
			return true
		}
	}
	return !made || from.Before(v.whole) || from.Before(v.begin) || v.paused(from, seen.end())
}
