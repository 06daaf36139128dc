package why

import (
	"fmt"
	"slices"
	"time"

	"github.com/criproxy/criproxy/internal/observe/capture"
)

// stood reports whether criproxy did not run at some time between two times, as it noticed afterwards. Nobody else is to blame
// for what calls show of such a time.
func (v *view) stood(from, to time.Time) bool {
	return slices.ContainsFunc(v.changes, func(c *capture.Change) bool {
		return c.What == capture.StoodStill && !c.Since.After(to) && !c.Time.Before(from)
	})
}

// standstills finds times in which criproxy itself did not run.
func (v *view) standstills() []Finding {
	var all []*capture.Change
	var whole time.Duration
	for _, c := range v.changes {
		if c.What == capture.StoodStill {
			all, whole = append(all, c), whole+c.Lasted()
		}
	}
	if len(all) == 0 {
		return nil
	}
	first, last := all[0], all[len(all)-1]
	f := Finding{Level: Warning, About: "criproxy", Since: first.Since, Last: last.Time, Over: true, Count: len(all),
		Text: fmt.Sprintf("criproxy itself stood still for %s, from %s to %s: clients waited for it, and for no runtime", round(whole), clock(first.Since), clock(last.Time)),
		Not:  "kubelet or a runtime: criproxy could not see what they did in this time",
		Cure: "see what stopped criproxy's process: CPU throttling of its cgroup (cpu.stat), memory pressure and swap, SIGSTOP, a debugger, or a machine that was stopped or migrated"}
	if len(all) > 1 {
		f.Text = fmt.Sprintf("criproxy itself stood still %s, for %s in all, from %s to %s: clients waited for it, and for no runtime", times(len(all)), round(whole), clock(first.Since), clock(last.Time))
	}
	for i, c := range all {
		if i < maxProofs-1 || c == last {
			f.Evidence = append(f.Evidence, Proof{c.Time, c.String()})
		}
	}
	return []Finding{f}
}

// criproxyOff finds times in which no criproxy ran.
func (v *view) criproxyOff() []Finding {
	var found []Finding
	var ended time.Time
	for _, c := range v.changes {
		switch c.What {
		case capture.Stopped:
			ended = c.Time
		case capture.HandedOver:
			ended = time.Time{}
		case capture.Serving:
			from, how := ended, "stopped"
			if !c.Missing.IsZero() {
				from, how = c.Missing, "crashed or was killed"
			}
			if !from.IsZero() && c.Time.Sub(from) >= rhythm {
				found = append(found, Finding{Level: Warning, About: "criproxy", Since: from, Last: c.Time, Over: true, Count: 1, Evidence: []Proof{{c.Time, c.String()}},
					Text: fmt.Sprintf("criproxy did not run for %s, from %s to %s: it %s, and clients could not call any runtime", round(c.Time.Sub(from)), clock(from), clock(c.Time), how),
					Not:  "kubelet or a runtime: criproxy could not see what they did in this time",
					Cure: "read criproxy's log at that time (journalctl -u criproxy): if nobody stopped it, look for the OOM killer (dmesg) or a panic"})
			}
			ended = time.Time{}
		}
	}
	return found
}
