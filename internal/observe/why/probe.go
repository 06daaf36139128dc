package why

import (
	"fmt"
	"slices"
	"time"

	"github.com/criproxy/criproxy/internal/observe/capture"
)

var probes = Rule{
	Name:     "exec-probe",
	Symptoms: []string{"probe errored*deadlineexceeded", "probe failed*timed out", "probe failed*timeout", "execsync*deadlineexceeded", "execsync*context deadline exceeded", "failed to exec in container: timeout", "command*timed out"},
	Means:    "an exec probe takes longer than its timeoutSeconds. kubelet counts it as failed, although the container may be well.",
	Shown:    "ExecSync calls that take longer than the time-out in their request; how many ran at once, and how long those of other containers took",
	Not:      "a probe that found the container ill: that ends in time, with an exit code",
	Cure:     "if the others are quick, the command is slow: make it lighter, use an httpGet or grpc probe, or raise timeoutSeconds. If all are slow, the node is: each exec starts processes, so use fewer or rarer exec probes, and look at CPU and disk",
	find:     slowProbes,
}

// many is of how many things one finding names together.
const many = 3

func slowProbes(v *view) []Finding {
	execs := v.of(func(c *call) bool { return c.kubelet() && c.asked > 0 }, "ExecSync")
	over := func(c *call) bool { return c.took >= c.asked }
	var late [][]*call // by container
	for _, all := range groups(execs, (*call).object) {
		if len(filter(all, over)) > 1 {
			late = append(late, all)
		}
	}
	if len(late) >= many {
		all := filter(slices.Concat(late...), over)
		slices.SortStableFunc(all, func(a, b *call) int { return a.began.Compare(b.began) })
		f, c := shown(all), longest(all)
		f.decided(c)
		f.About = on(c)
		f.Text = fmt.Sprintf("the exec probes of %s, such as %s, took longer than their time-outs, %s%s; up to %d at once", capture.Count(len(late), "container"), c.object(), times(len(all)), v.outOf(slices.Concat(late...)), atOnce(execs, f.Since, f.Last))
		f.Cause = fmt.Sprintf("the node is busy or %s slow, and the containers may be well", on(c))
		f.Cure = "use fewer or rarer exec probes, since each starts processes; look at CPU and disk, and at the runtime's log"
		f.Over = !over(execs[len(execs)-1]) && execs[len(execs)-1].ok()
		return []Finding{f}
	}
	var found []Finding
	for _, all := range late {
		slow := filter(all, over)
		f, c := shown(slow), longest(slow)
		f.decided(c)
		f.About = c.object()
		f.Text = fmt.Sprintf("the exec probe of %s took longer than its time-out of %s, %s%s on %s; %s at once", f.About, round(c.asked), times(len(slow)), v.outOf(all), on(c), capture.Count(atOnce(execs, f.Since, f.Last), "exec probe"))
		if others := filter(execs, func(o *call) bool { return o.object() != c.object() && o.ended }); len(others) > 0 && !slow[0].began.Before(v.whole) {
			usual := median(others)
			f.Text += fmt.Sprintf("; those of other containers took %s", round(usual))
			switch {
			case usual >= time.Second:
				f.Cause = "the node is busy or the runtime slow"
			case usual < median(slow)/4 && len(late) == 1:
				f.Cause = "the command is slow and the runtime is not"
			}
		}
		if last := all[len(all)-1]; last.ok() && !over(last) {
			f.Over = true
			f.decided(last)
		}
		found = append(found, f)
	}
	return found
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
