package node

import (
	"fmt"
	"strings"
	"time"
)

var stuckTerminating = Rule{
	Name: "stuck-terminating",
	Symptoms: []string{"error killing pod", "error killing terminating pod", "failed to stop sandbox", "kill container failed", "container termination failed", "failed to destroy network for sandbox",
		"stopcontainer from runtime service failed", "stoppodsandbox from runtime service failed", "failedkillpod", "failed to get task for container"},
	Means: "kubelet wants to end a pod, and the runtime cannot: kubelet repeats StopContainer and StopPodSandbox, and the pod stays in Terminating.",
	Shown: "StopContainer or StopPodSandbox for one pod that fail again and again, and what the runtime answers; or a StopContainer that took the whole grace period",
	Not:   "a finalizer: Kubernetes waits for those after the containers have ended, and no call fails",
	Cure:  "read the runtime's log under the id of the sandbox",
	find:  stuck,
}

// An obstacle is what keeps a pod from ending, which the answer of the runtime tells.
type obstacle struct {
	words []string // one of them is in the message
	text  string
	sure  string
	cure  string
}

var obstacles = []obstacle{
	{[]string{"failed to destroy network", "failed to teardown pod", "cni plugin", "netplugin failed"}, "its CNI plugin fails to remove the network", Certain,
		"mend the CNI plugin named in the answer, or what it waits for; the pod ends by itself at the next try. Do not remove the pod by force: its address stays taken"},
	{[]string{"ttrpc: closed", "shim disconnected", "connect: connection refused", "no such process", "cannot find shim"}, "its shim is gone", Likely,
		"look at the processes of the pod with crictl inspectp; restart the runtime, which then cleans up pods without a shim"},
	{[]string{"failed to get task", "context deadline exceeded"}, "its shim does not answer", Likely,
		"find the process containerd-shim (or conmon) with the sandbox's id in its arguments: it is stopped, or it waits for a disk or a process in state D. Continue it (kill -CONT) or end it (kill -KILL); the runtime then cleans up"},
}

// stuck finds pods that cannot end.
func stuck(v *view) []Finding {
	var found []Finding
	stops := v.of((*call).kubelet, "StopContainer", "StopPodSandbox")
	for _, all := range groups(stops, func(c *call) string { return c.about.UID + " " + c.pod() + " " + podless(c) }) {
		var show []*call
		var over *call
		for _, c := range all {
			if c.failed() {
				show, over = append(show, c), nil
			} else if c.ok() && len(show) > 0 && (c.method == "StopPodSandbox" || show[len(show)-1].method == "StopContainer") {
				over = c
			}
		}
		if len(show) < 2 {
			continue
		}
		f := shown(show)
		last := show[len(show)-1]
		f.About, f.Level = last.target(), Error
		f.Text = fmt.Sprintf("%s cannot end on %s: %s failed %s; the last answer was: %s", f.About, on(last), methodsOf(show), times(len(show)), cut(last.message, 160))
		for _, o := range obstacles {
			if containsAny(last.message, o.words) {
				f.Text = fmt.Sprintf("%s cannot end on %s: %s (%s failed %s: %s)", f.About, on(last), o.text, methodsOf(show), times(len(show)), cut(last.message, 200))
				f.Sure, f.Cure = o.sure, o.cure
				break
			}
		}
		if over != nil {
			f.Over, f.Level = true, Warning
			f.Text += "; it ended at " + clock(over.end())
		}
		found = append(found, f)
	}
	return append(found, v.stubborn(stops)...)
}

// leastGrace is the shortest grace period whose end says something.
const leastGrace = 2 * time.Second

// stubborn finds containers that did not end at their signal.
func (v *view) stubborn(stops []*call) []Finding {
	var found []Finding
	for _, all := range groups(stops, func(c *call) string {
		if c.method != "StopContainer" || c.asked < leastGrace || c.took < c.asked || !c.ok() && c.ended {
			return ""
		}
		return c.object()
	}) {
		f, c := shown(all), longest(all)
		f.Level, f.Over, f.About = Note, true, c.object()
		f.Text = fmt.Sprintf("%s did not end within its grace period of %s after its signal, so that %s had to kill it", f.About, round(c.asked), on(c))
		f.Not = "the runtime: it waited as long as kubelet asked for"
		f.Cure = "make the program end at SIGTERM: a shell as process 1 does not pass the signal on (use exec, or an init), and a process 1 without a handler ignores it; or give it the time that it needs with terminationGracePeriodSeconds"
		if !c.ended {
			f.Over, f.Level, f.Sure = false, Warning, Likely
			f.Text = fmt.Sprintf("%s has not ended %s after its signal, although its grace period was %s: %s does not get its process killed", f.About, round(c.took), round(c.asked), on(c))
			f.Cure = "look for a process of the container in state D (waiting for a disk or a network file system): nothing can kill it before that answers"
		}
		if c.ended || c.took > c.asked+10*time.Second {
			found = append(found, f)
		}
	}
	return found
}

var notRemoved = Rule{
	Name:     "not-removed",
	Symptoms: []string{"failed to remove container", "failed to remove sandbox", "removepodsandbox from runtime service failed", "removecontainer from runtime service failed", "failed to garbage collect required amount of images", "imagegcfailed", "removeimage from image service failed", "failed to remove image"},
	Means:    "kubelet wants to remove a sandbox, a container or an image that it no longer needs, and the runtime cannot: it stays on the node and takes disk and addresses.",
	Shown:    "RemovePodSandbox, RemoveContainer or RemoveImage of one id that fails again and again, and never succeeds",
	Not:      "a pod that runs: nothing but what has ended is removed",
	Cure:     "read the runtime's answer. Remove the thing by hand (crictl rmp, rm or rmi) when what it names is mended; mounts that are busy show in findmnt",
	find: func(v *view) []Finding {
		var found []Finding
		for _, all := range groups(v.of((*call).kubelet, "RemovePodSandbox", "RemoveContainer", "RemoveImage"), func(c *call) string {
			return c.method + " " + c.target()
		}) {
			last := all[len(all)-1]
			failed := filter(all, (*call).failed)
			if len(failed) < 3 || !last.failed() {
				continue
			}
			f := shown(failed)
			f.About = last.target()
			f.Text = fmt.Sprintf("%s on %s fails for %s: it was tried %s, and the last answer was: %s", last.method, on(last), f.About, times(len(failed)), cut(last.message, 200))
			found = append(found, f)
		}
		return found
	},
}

// on returns the runtimes that a call went to, for people.
func on(c *call) string {
	if s := c.slowest(); s != "" {
		return s
	}
	var all []string
	for _, one := range c.legs {
		all = append(all, one.backend)
	}
	if len(all) == 0 {
		return "no runtime"
	}
	return strings.Join(all, ", ")
}

// target returns what a call is about: the pod, or else the image or the id.
func (c *call) target() string {
	if p := c.pod(); p != "" && c.method != "RemoveContainer" {
		return p
	}
	return c.object()
}

// podless returns the id of a call about a pod without a name.
func podless(c *call) string {
	if c.pod() != "" {
		return ""
	}
	return c.id()
}

// methodsOf returns the methods of calls.
func methodsOf(all []*call) string {
	var names []string
	seen := map[string]bool{}
	for _, c := range all {
		if !seen[c.method] {
			seen[c.method] = true
			names = append(names, c.method)
		}
	}
	return strings.Join(names, " and ")
}

func filter(all []*call, ok func(*call) bool) []*call {
	var some []*call
	for _, c := range all {
		if ok(c) {
			some = append(some, c)
		}
	}
	return some
}

func containsAny(s string, words []string) bool {
	for _, w := range words {
		if strings.Contains(s, w) {
			return true
		}
	}
	return false
}
