package why

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/criproxy/criproxy/internal/observe/capture"
)

var probes = Rule{
	Name:     "exec-probe",
	Symptoms: []string{"probe errored*deadlineexceeded", "probe failed*timed out", "probe failed*timeout", "execsync cmd from runtime service failed", "failed to exec in container: timeout", "command*timed out"},
	Means:    "an exec probe takes longer than its timeoutSeconds, or its command is not run at all. kubelet counts it as failed, although the container may be well.",
	Shown:    "ExecSync calls that take longer than the time-out in their request, or whose answer says that the shim did not answer; how many ran at once, and how long those of other containers took. Or ExecSync calls that the runtime refuses again and again",
	Not:      "a probe that found the container ill: that ends in time, with an exit code",
	Cure:     "an answer that could not load the task waited for the shim of the container, which may be stopped. Otherwise, if the others are quick, the command is slow: make it lighter, use an httpGet or grpc probe, or raise timeoutSeconds. If all are slow, the node is: each exec starts processes, so use fewer or rarer exec probes, and look at CPU and disk",
	find:     func(v *view) []Finding { return append(slowProbes(v), v.refusedExecs()...) },
}

// many is of how many things one finding names together.
const many = 3

// ranTooLong are words of an answer to an ExecSync whose command was started, and did not end in time: containerd, and CRI-O.
var ranTooLong = []string{"timeout", "timed out"}

// overTime reports whether an ExecSync took longer than the time-out in its request.
func overTime(c *call) bool { return c.took >= c.asked }

// notEnded reports whether the runtime has let the command of an ExecSync go on long after its time-out.
func notEnded(c *call) bool { return c.took >= c.asked+hung }

// notRun reports whether the runtime did not run the command of an ExecSync, because the container's shim did not answer. containerd
// waits two seconds for a shim.
func notRun(c *call) bool {
	return c.code == codes.DeadlineExceeded && causeOf(c.method, c.message) != nil
}

// late reports whether an ExecSync failed for another reason than its command.
func late(c *call) bool { return overTime(c) || notRun(c) }

// passing are words of an answer to an ExecSync for a container that ends, or a shim that does.
var passing = []string{"not found", "not running", "no running task", "EXITED", "stopped", "ttrpc", "no such process", "connect: "}

// refusedExec reports whether a runtime refused to run the command of an ExecSync, and not because the container has ended.
func refusedExec(c *call) bool {
	if c.code != codes.Unknown {
		return false
	}
	if of := causeOf(c.method, c.message); of != nil {
		return !of.likely
	}
	return !slices.ContainsFunc(passing, func(w string) bool { return strings.Contains(c.message, w) })
}

// refusedExecs finds containers of which a runtime refuses to run the probe or hook.
func (v *view) refusedExecs() []Finding {
	var found []Finding
	for _, all := range groups(v.of((*call).kubelet, "ExecSync"), (*call).place) {
		refused := filter(all, refusedExec)
		if len(refused) < 3 || refused[len(refused)-1].began.Sub(refused[0].began) < time.Second { // kubelet tries a probe three times at once
			continue
		}
		f, last := shown(refused), refused[len(refused)-1]
		said := last.message
		if of := causeOf(last.method, last.message); of != nil {
			said, f.Cure = of.text+": "+said, of.cure
		}
		f.About, f.Level = last.object(), Error
		f.Not = "a probe that found the container ill: its command was not run"
		what := "exec probe"
		if last.asked == 0 {
			what = "hook"
		}
		say := func(is string) string {
			return fmt.Sprintf("%s: its %s %s not run on %s, %s: %s", f.About, what, is, on(last), times(len(refused)), said)
		}
		f.Text, f.past = say("is"), say("was")
		if i := slices.IndexFunc(all, func(c *call) bool { return c.ok() && c.began.After(last.began) }); i >= 0 {
			f.end("; it runs again since "+clock(all[i].began), all[i])
		}
		found = append(found, f)
	}
	return found
}

func slowProbes(v *view) []Finding {
	var found []Finding
	for _, execs := range groups(v.of(func(c *call) bool {
		return c.kubelet() && c.asked > 0 && !refusedExec(c) && !v.stood(c.began, c.end())
	}, "ExecSync"), on) {
		var lates [][]*call // by container
		for _, all := range groups(execs, (*call).object) {
			slow := filter(all, late)
			if len(slow) < 2 && !slices.ContainsFunc(slow, notEnded) {
				continue
			}
			if waits := cmp.Or(causeOf("ExecSync", lastAnswer(slow)), mostly(slow)); waits != nil {
				f, _ := v.lateProbe(all, execs)
				f.Cause, f.Cure = waits.text, waits.cure
				found = append(found, f)
				continue
			}
			lates = append(lates, all)
		}
		if len(lates) >= many {
			found = append(found, v.lateProbes(lates, execs))
			continue
		}
		for _, all := range lates {
			f, usual := v.lateProbe(all, execs)
			slow := filter(all, overTime)
			switch {
			case notEnded(longest(slow)) && usual < time.Second:
				f.Cause = "the runtime did not end it at its time-out"
				f.Cure = "look for a runc (or crun) that does not end, and for the container's shim (containerd-shim or conmon, with the sandbox's id in its arguments): what they wait for, a disk or a frozen cgroup, holds up each exec in the container. Ending the runc ends the wait"
			case usual >= time.Second:
				f.Cause = "the node is busy or the runtime slow"
			case usual > 0 && usual < median(slow)/4 && len(lates) == 1 && slices.ContainsFunc(ranTooLong, func(w string) bool { return strings.Contains(lastAnswer(slow), w) }):
				f.Cause = "the command is slow"
				if !v.wasSlow(on(all[0])) {
					f.Cause += " and the runtime is not"
				}
			}
			found = append(found, f)
		}
	}
	return found
}

// mostly returns the cause that most answers to calls show, or nil. When a shim goes on, the calls that waited for it are late for
// no other reason.
func mostly(all []*call) *cause {
	ended := filter(all, func(c *call) bool { return c.ended })
	known := filter(ended, func(c *call) bool { return causeOf(c.method, c.message) != nil })
	if 2*len(known) <= len(ended) {
		return nil
	}
	last := known[len(known)-1]
	return causeOf(last.method, last.message)
}

// lastAnswer returns the error of the last call that has ended.
func lastAnswer(all []*call) (message string) {
	for _, c := range all {
		if c.ended {
			message = c.message
		}
	}
	return message
}

// lateProbe returns the finding of a container whose exec probes took longer than their time-out, without a cause, and how
// long those of other containers of the runtime usually took, zero if that is not known.
func (v *view) lateProbe(all, execs []*call) (f Finding, usual time.Duration) {
	slow := filter(all, late)
	c := longest(slow)
	f = shown(slow)
	f.decided(c)
	f.About = c.object()
	what := "took longer than its time-out of " + round(c.asked)
	switch {
	case !slices.ContainsFunc(slow, overTime):
		what = "was not run"
	case notEnded(c):
		took := round(c.took)
		if !c.ended {
			took += " so far"
		}
		what = fmt.Sprintf("took %s, and its time-out is %s", took, round(c.asked))
	}
	f.Text = fmt.Sprintf("%s: its exec probe %s, %s%s on %s; %s at once", f.About, what, times(len(slow)), v.outOf(all), on(c), capture.Count(atOnce(execs, f.Since, f.Last), "exec probe"))
	if others := filter(execs, func(o *call) bool { return o.object() != c.object() && o.ended && causeOf(o.method, o.message) == nil }); len(others) > 0 && !slow[0].began.Before(v.whole) {
		usual = median(others)
		f.Text += fmt.Sprintf("; those of other containers took %s", round(usual))
	}
	if last := all[len(all)-1]; last.ok() && !late(last) {
		f.Over = true
		f.decided(last)
	}
	return f, usual
}

// lateProbes returns the finding of a runtime on which many exec probes took longer than their time-outs.
func (v *view) lateProbes(late [][]*call, execs []*call) Finding {
	all := slices.Concat(late...)
	slices.SortStableFunc(all, func(a, b *call) int { return a.began.Compare(b.began) })
	slow := filter(all, overTime)
	f, c := shown(slow), longest(slow)
	f.decided(c)
	f.About = on(c)
	f.Text = fmt.Sprintf("%s and %s: their exec probes took longer than their time-outs, %s%s; up to %d at once", c.object(), capture.Count(len(late)-1, "other container"), times(len(slow)), v.outOf(all), atOnce(execs, f.Since, f.Last))
	f.Cause = fmt.Sprintf("the node is busy or %s slow, and the containers may be well", on(c))
	f.Cure = "use fewer or rarer exec probes, since each starts processes; look at CPU and disk, and at the runtime's log"
	last := execs[len(execs)-1]
	f.Over = !overTime(last) && last.ok()
	return f
}

// wasSlow reports whether anything else in the calls shows that a runtime was slow or gone.
func (v *view) wasSlow(name string) bool {
	return slices.ContainsFunc(v.changes, func(c *capture.Change) bool {
		return c.Backend == name && (c.What == capture.Slow || c.What == capture.Gone)
	}) || slices.ContainsFunc(v.hung, func(h hang) bool { return h.backend == name }) || slices.ContainsFunc(v.slowLooks(), func(c *call) bool { return c.slowest() == name })
}

// outOf says how many calls there were, if all of them are there.
func (v *view) outOf(all []*call) string {
	if all[0].began.Before(v.whole) {
		return ""
	}
	return fmt.Sprintf(" of %d", len(all))
}

// atOnce returns how many calls were under way at once at most between two times.
func atOnce(all []*call, from, to time.Time) int {
	most := 0
	for _, c := range all {
		if c.end().Before(from) || c.began.After(to) {
			continue
		}
		n := 0
		for _, o := range all {
			if !o.began.After(c.began) && o.end().After(c.began) {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}
