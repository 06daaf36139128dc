package node

import (
	"fmt"
	"time"
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

func slowProbes(v *view) []Finding {
	var found []Finding
	execs := v.of(func(c *call) bool { return c.kubelet() && c.asked > 0 }, "ExecSync")
	over := func(c *call) bool { return c.took >= c.asked }
	for _, all := range groups(execs, (*call).object) {
		late := filter(all, over)
		if len(late) < 2 {
			continue
		}
		f, c := shown(late), longest(late)
		f.About = c.object()
		f.Text = fmt.Sprintf("the exec probe of %s took longer than its time-out of %s, %s of %d on %s; %s at once", f.About, round(c.asked), times(len(late)), len(all), on(c), count(atOnce(execs, f.Since, f.Last), "exec probe"))
		if others := filter(execs, func(o *call) bool { return o.object() != c.object() && o.ok() }); len(others) > 0 {
			usual := median(others)
			f.Text += fmt.Sprintf("; those of other containers took %s", round(usual))
			if usual >= time.Second {
				f.Text += ", so the node is busy or the runtime slow"
			} else {
				f.Text += ", so the command is slow and the runtime is not"
			}
		}
		if last := all[len(all)-1]; last.ok() && !over(last) {
			f.Over = true
		}
		found = append(found, f)
	}
	return found
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
