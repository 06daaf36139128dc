package why

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/criproxy/criproxy/internal/observe/capture"
)

var sandboxReserved = Rule{
	Name:     "sandbox-reserved",
	Symptoms: []string{"failed to reserve sandbox name", "createpodsandbox*context deadline exceeded", "createpodsandbox*deadlineexceeded", "error reserving pod name", "runpodsandbox*context deadline exceeded", "createpodsandboxerror*name is reserved"},
	Means:    "kubelet gave up a RunPodSandbox at its deadline. The runtime goes on with it and keeps the name of the sandbox, so each retry fails until it has finished.",
	Shown:    "a RunPodSandbox that ended with its deadline, and later ones for the same pod that fail at once because the name is reserved; or one that has been under way for more than a minute",
	Not:      "a pod that exists twice: the name is held by the first attempt, which has not ended",
	Cure:     "find what holds up the first attempt in the runtime's log under the pod's name: it may wait for a CNI plugin or a disk. Retries succeed by themselves when it ends; restart the runtime only if it never does",
	tried:    true,
	find:     func(v *view) []Finding { return v.reserved("RunPodSandbox", "the sandbox") },
}

var containerReserved = Rule{
	Name:     "container-reserved",
	Symptoms: []string{"failed to reserve container name", "error reserving ctr name", "createcontainer*context deadline exceeded", "createcontainererror*deadlineexceeded"},
	Means:    "kubelet gave up a CreateContainer at its deadline. The runtime goes on with it and keeps the name of the container, so each retry fails until it has finished.",
	Shown:    "a CreateContainer that ended with its deadline, and later ones for the same container that fail at once because the name is reserved; or one that has been under way for more than a minute",
	Not:      "a container that exists twice: the name is held by the first attempt, which has not ended",
	Cure:     "find what holds up the first attempt in the runtime's log under the container's name: it may wait for a disk, or copy the many files of an image's VOLUME. Retries succeed by themselves when it ends. kubelet gives up after its runtimeRequestTimeout, by default 2m",
	tried:    true,
	find:     func(v *view) []Finding { return v.reserved("CreateContainer", "the container") },
}

// isReserved reports whether a runtime refused a name because an earlier call holds it: containerd, and CRI-O.
func isReserved(message string) bool {
	return strings.Contains(message, "failed to reserve") && strings.Contains(message, "is reserved for") ||
		strings.Contains(message, "error reserving") || strings.Contains(message, "name is reserved")
}

// abandoned is how long a call took at least that kubelet gave up because of its deadline.
const abandoned = time.Second

// longUnderWay is how long a call that makes or ends a part of a pod may be under way before why says so.
const longUnderWay = time.Minute

// long returns the last one of calls if it has taken long, and did not fail. Otherwise it returns nil. Before a runtime makes a
// sandbox or a container it may have to copy much, so that these may take longer.
func long(all []*call) *call {
	last, least := all[len(all)-1], longUnderWay
	if last.method == "StopPodSandbox" {
		least = longStart
	}
	if last.took >= least && (last.ok() || !last.ended) {
		return last
	}
	return nil
}

// underWay returns the finding of a call that took long, or has been under way for long.
func (v *view) underWay(c *call) Finding {
	f := shown([]*call{c})
	f.About, f.Not = c.object(), "kubelet: it waits for the answer"
	if c.took < longUnderWay {
		f.Level = Note
	}
	where := ""
	switch {
	case len(c.legs) > 0:
		where = " on " + on(c)
	case !v.blind():
		where = " in criproxy, which has not asked a runtime yet"
	}
	f.Text = fmt.Sprintf("%s waits for its %s, which has been under way for %s%s", f.About, c.method, round(c.took), where)
	f.past = fmt.Sprintf("%s waited for its %s, which took %s%s", f.About, c.method, round(c.took), strings.TrimSuffix(where, " yet"))
	if c.failed() {
		f.past += ": " + c.message
	}
	if c.ended {
		f.end("", c)
	}
	return f
}

// reserved finds calls that kubelet gave up, and whose retries fail because the runtime goes on with them, and those that have
// been under way for long.
func (v *view) reserved(method, what string) []Finding {
	var found []Finding
	for _, all := range groups(v.of((*call).kubelet, method), (*call).place) {
		var left, held *call
		var show []*call
		var refused int
		for _, c := range all {
			switch {
			case c.ok():
				held = c
			case c.failed() && isReserved(c.message):
				refused++
				show, held = append(show, c), nil
			case c.expired():
				left = c
				show, held = append(show, c), nil
			}
		}
		now := long(all)
		if left == nil && refused < 2 {
			if now != nil {
				found = append(found, v.underWay(now))
			}
			continue
		}
		if now != nil && now.ended {
			now = nil // see held
		}
		f := shown(show)
		f.decided(left, now)
		if now != nil {
			f.Last, held = now.end(), nil
		}
		on := cmp.Or(show[0].runtime(), "the runtime")
		f.About, f.Level = show[0].object(), Error
		retries := capture.Count(refused, "retry")
		switch {
		case left == nil:
			f.Cause = "kubelet gave up one before these calls, and " + on + " went on with it"
			say := func(cannot string) string {
				return fmt.Sprintf("%s %s make %s of %s: %s failed because the name was reserved", on, cannot, what, f.About, retries)
			}
			f.Text, f.past = say("cannot"), say("could not")
		case refused == 0:
			f.Cause = on + " went on with it, and kept its name meanwhile"
			f.Text = fmt.Sprintf("%s was too slow for %s of %s: kubelet gave up %s, the last time after %s", on, what, f.About, times(len(show)), round(left.took))
		default:
			say := func(is, goes, has string) string {
				return fmt.Sprintf("%s %s too slow for %s of %s: kubelet gave up after %s, %s %s on, and %s failed because it still %s the name", on, is, what, f.About, round(left.took), on, goes, retries, has)
			}
			f.Text, f.past = say("is", "goes", "has"), say("was", "went", "had")
		}
		if now != nil {
			f.Text += "; another one has been under way for " + round(now.took)
		} else {
			v.endTries(&f, all, show, "succeeded", held)
		}
		found = append(found, f)
	}
	return found
}
