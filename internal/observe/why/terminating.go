package why

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/criproxy/criproxy/internal/observe/capture"
)

var stuckTerminating = Rule{
	Name: "stuck-terminating",
	Symptoms: []string{"error killing pod", "failed to \"killpodsandbox\"", "killpodsandboxerror", "failed to \"killcontainer\"", "killcontainererror", "error killing terminating pod", "killpodwithsyncresult failed", "failed to stop sandbox", "failed to stop container", "failed to kill container", "kill container failed", "did not kill the pod within", "container termination failed", "failed to destroy network for sandbox",
		"stopcontainer from runtime service failed", "stoppodsandbox from runtime service failed", "failedkillpod", "failed to get task for container"},
	Means: "kubelet wants to end a pod, and the runtime cannot: kubelet repeats StopContainer and StopPodSandbox, and the pod stays in Terminating.",
	Shown: "StopContainer or StopPodSandbox for one pod that fail again and again, or once at kubelet's deadline, and what the runtime answers; a StopPodSandbox that takes more than half a minute; or a StopContainer that took the whole grace period",
	Not:   "a finalizer: Kubernetes waits for those after the containers have ended, and no call fails",
	Cure:  "read the runtime's log under the id of the sandbox",
	find:  stuck,
}

// stuck finds pods that cannot end.
func stuck(v *view) []Finding {
	var found []Finding
	stops := v.of((*call).kubelet, stopping...)
	for _, all := range groups(stops, func(c *call) string { return c.about.UID + " " + cmp.Or(c.pod(), c.id()) }) {
		var show []*call
		var over *call
		for _, c := range all {
			if c.failed() {
				show, over = append(show, c), nil
			} else if c.ok() && len(show) > 0 && (c.method == "StopPodSandbox" || show[len(show)-1].method == "StopContainer") {
				over = c
			}
		}
		now := long(all)
		if now != nil && now.method != "StopPodSandbox" {
			now = nil // see stubborn
		}
		if len(show) < 2 && (len(show) == 0 || show[0].took < longUnderWay) { // at kubelet's deadline, one is enough
			if now != nil {
				found = append(found, v.underWay(now))
			}
			continue
		}
		if now != nil && now.ended {
			now = nil // see over
		}
		f := shown(show)
		f.decided(now)
		if now != nil {
			f.Last, over = now.end(), nil
		}
		last := show[len(show)-1]
		f.About, f.Level = last.target(), Error
		failed := fmt.Sprintf("%s failed %s", and(methodsOf(show)), times(len(show)))
		why := failed + "; the last answer was: " + last.message
		if c := causeOf(last.method, last.message); c != nil {
			f.Cure = c.cure
			if c.likely {
				f.Cause = c.text
			} else {
				why = fmt.Sprintf("%s (%s: %s)", c.text, failed, last.message)
			}
		}
		say := func(cannot string) string { return fmt.Sprintf("%s %s end on %s: %s", f.About, cannot, on(last), why) }
		f.Text, f.past = say("cannot"), say("could not")
		if now != nil {
			f.Text += "; a StopPodSandbox has been under way for " + round(now.took)
		} else {
			v.endTries(&f, all, show, "ended", over)
		}
		found = append(found, f)
	}
	return append(found, v.stubborn(stops)...)
}

// leastGrace is the shortest grace period whose end says something: on a busy node a runtime takes seconds besides.
const leastGrace = 5 * time.Second

// longKill is how long after the grace period a container has ended at the latest, also on a busy node.
const longKill = 15 * time.Second

// stubborn finds containers that did not end at their signal.
func (v *view) stubborn(stops []*call) []Finding {
	var late, killed []*call
	for _, all := range groups(stops, func(c *call) string {
		if c.method != "StopContainer" || c.took < c.asked || c.ended && !c.ok() {
			return ""
		}
		return c.object()
	}) {
		switch c := longest(all); {
		case c.took > c.asked+longKill:
			late = append(late, c)
		case c.ended && c.asked >= leastGrace:
			killed = append(killed, c)
		}
	}
	return append(v.notKilled(late), hadToBeKilled(killed)...)
}

// notKilled returns the findings of containers that went on long after their grace periods, or one about all if there are many.
func (v *view) notKilled(late []*call) []Finding {
	var found []Finding
	for _, all := range groups(late, on) {
		n := len(all)
		if n < many {
			for _, c := range all {
				found = append(found, lateEnd([]*call{c}))
			}
			continue
		}
		f := lateEnd(all)
		f.Text += fmt.Sprintf("; %s as well", capture.Count(n-1, "other container"))
		f.Cause = "the node is busy or " + on(all[0]) + " slow"
		f.Cure = "look at CPU and disk (top, iostat), and at the runtime's log; if the node is idle, for processes of these containers in state D (waiting for a disk or a network file system)"
		found = append(found, f)
	}
	return found
}

// lateEnd returns the finding of containers that went on long after their grace periods, with the words of the one that took longest.
func lateEnd(all []*call) Finding {
	f, c := shown(all), longest(all)
	f.About, f.Cause = c.object(), on(c)+" did not get its process killed"
	ended := "has not ended"
	if c.ended {
		ended = "ended only"
	}
	f.Text = fmt.Sprintf("%s %s %s after its signal, although its grace period was %s", f.About, ended, round(c.took), round(c.asked))
	f.Cure = "look for a process of the container in state D (waiting for a disk or a network file system): nothing can kill it before that answers"
	if !slices.ContainsFunc(all, func(c *call) bool { return !c.ended }) {
		f.end("")
	}
	return f
}

// hadToBeKilled returns a note about containers that their runtime had to kill.
func hadToBeKilled(killed []*call) []Finding {
	if len(killed) == 0 {
		return nil
	}
	f, c := shown(killed), killed[0]
	f.Level, f.Over, f.About = Note, true, c.object()
	f.Text = fmt.Sprintf("%s did not end within its grace period of %s after its signal, so that %s had to kill it", f.About, round(c.asked), on(c))
	if more := len(killed) - 1; more > 0 {
		f.Text += fmt.Sprintf("; so did %s", capture.Count(more, "other container"))
	}
	f.Not = "the runtime: it waited as long as kubelet asked for"
	f.Cure = "make the program end at SIGTERM: a shell as process 1 does not pass the signal on (use exec, or an init), and a process 1 without a handler ignores it; or give it the time that it needs with terminationGracePeriodSeconds"
	return []Finding{f}
}
