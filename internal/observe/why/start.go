package why

import (
	"fmt"
	"slices"
	"time"
)

var slowStart = Rule{
	Name:     "slow-start",
	Symptoms: []string{"startcontainer*context deadline exceeded", "startcontainer*deadlineexceeded"},
	Means:    "a container takes long to start: its StartContainer does not end, or the command of its postStart hook. kubelet waits, and the container is not ready meanwhile.",
	Shown:    "a StartContainer, or an ExecSync without a time-out right after one, that takes half a minute or more",
	Not:      "kubelet: it waits for the answer",
	Cure:     "look at the processes below the pod's shim (ps), and at what they wait for: a hook of the runtime, a mount, a disk. kubelet gives up after its runtimeRequestTimeout, by default 2m",
	find:     (*view).slowStarts,
}

// longStart is how long the start of a container, or its postStart hook, takes before why says so.
const longStart = 30 * time.Second

// slowStarts finds containers whose StartContainer or postStart hook takes long. kubelet gives a hook no time-out. A preStop hook
// may take the whole grace period.
func (v *view) slowStarts() []Finding {
	var found []Finding
	started := v.of(func(c *call) bool { return c.kubelet() && c.ok() }, "StartContainer")
	hook := func(c *call) bool {
		return c.method == "ExecSync" && c.asked == 0 && slices.ContainsFunc(started, func(s *call) bool {
			return s.id() == c.id() && c.began.Sub(s.end()) < soon && !c.began.Before(s.end())
		})
	}
	for _, c := range v.of(func(c *call) bool {
		return c.kubelet() && c.took >= longStart && (c.method == "StartContainer" || hook(c))
	}, "StartContainer", "ExecSync") {
		f := v.underWay(c)
		if c.method == "StartContainer" && v.busy(c) {
			f.Cause = "the node is busy or " + on(c) + " slow: others started slowly, too"
			f.Cure = "look at CPU and disk (top, iostat), and at the runtime's log"
		} else if c.method == "StartContainer" {
			f.Cause = "its shim, or runc below it, waits for something"
		} else {
			runs, so := "has been running", ", and kubelet waits for it"
			if c.ended {
				runs, so = "ran", ""
			}
			f.Text = fmt.Sprintf("%s: its postStart hook %s for %s on %s%s", f.About, runs, round(c.took), on(c), so)
			f.Not = "the runtime: it waits for the command"
			f.Cure = "see what the command waits for: kubelet sets no time-out for it, and the container is not ready before it ends. End it in the container (crictl exec), or delete the pod"
		}
		found = append(found, f)
	}
	return found
}

// busy reports whether other calls of the same method took long at the same time.
func (v *view) busy(c *call) bool {
	return slices.ContainsFunc(v.of((*call).kubelet, c.method), func(o *call) bool {
		return o != c && o.object() != c.object() && o.took >= longStart/3 && o.began.Before(c.end()) && o.end().After(c.began)
	})
}
