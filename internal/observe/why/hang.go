package why

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/criproxy/criproxy/internal/observe/capture"
)

// hung is how long a runtime answers nothing before why reports it.
const hung = 10 * time.Second

// waits are methods that may take long without fault of the runtime.
var waits = []string{"PullImage", "StopContainer", "StopPodSandbox", "RunPodSandbox", "CreateContainer", "StartContainer", "ExecSync"}

// A hang is a time in which a runtime answered nothing.
type hang struct {
	backend     string
	since, till time.Time
	over        bool    // it has answered since
	calls       []*call // that waited
}

// hangsOf returns the times in which runtimes answered nothing, although they were asked several things.
func (v *view) hangsOf() []hang {
	var found []hang
	waiting, since := map[string][]*call{}, map[string]time.Time{} // :: runtime → calls that it has not answered, and since when it has answered none
	type step struct {
		at  time.Time
		c   *call
		end bool
	}
	var steps []step
	for _, c := range v.complete() {
		if len(c.legs) != 1 || c.stream {
			continue
		}
		begin := c.began.Add(c.legs[0].after)
		if !slices.Contains(waits, c.method) {
			steps = append(steps, step{begin, c, false})
		}
		if c.legs[0].ended || c.ended {
			steps = append(steps, step{begin.Add(c.legs[0].took), c, true})
		}
	}
	slices.SortStableFunc(steps, func(a, b step) int { return a.at.Compare(b.at) })
	close := func(name string, at time.Time, over bool) {
		all := waiting[name]
		if len(methodsOf(all)) > 2 && at.Sub(since[name]) >= hung && !v.paused(since[name], at) {
			found = append(found, hang{name, since[name], at, over, slices.Clone(all)})
		}
	}
	for _, s := range steps {
		name := s.c.legs[0].backend
		switch {
		case !s.end:
			if len(waiting[name]) == 0 {
				since[name] = s.at
			}
			waiting[name] = append(waiting[name], s.c)
		case s.c.gaveUp(0): // it is still not answered
		default:
			close(name, s.at, true)
			since[name] = s.at
			waiting[name] = slices.DeleteFunc(waiting[name], func(c *call) bool { return c == s.c || c.ended && !c.end().After(s.at) })
		}
	}
	for _, name := range slices.Sorted(maps.Keys(waiting)) {
		close(name, v.now, false)
	}
	return found
}

// hangs finds runtimes that answered nothing for some time, without being noted as gone.
func (v *view) hangs() []Finding {
	var found []Finding
	for _, h := range v.hung {
		if slices.ContainsFunc(v.changes, func(c *capture.Change) bool {
			return c.Backend == h.backend && c.What == capture.Gone && !c.Time.Before(h.since) && !c.Time.After(h.till)
		}) {
			continue // see outages
		}
		f := shown(h.calls)
		f.About, f.Level, f.Pods, f.Backends = h.backend, Error, nil, []string{h.backend}
		f.Since, f.Last = h.since, h.till
		f.decided(longest(h.calls))
		f.Text = fmt.Sprintf("%s answered nothing for %s, from %s on: %s waited (%s)", h.backend, round(f.Last.Sub(f.Since)), clock(f.Since), capture.Count(len(h.calls), "call"), and(methodsOf(h.calls)))
		f.Cause = "its process hung or was stopped, or got no time of a processor"
		if h.over {
			f.end("; it answers again since " + clock(f.Last))
		}
		f.Cure = v.afterHang(h.backend)
		found = append(found, f)
	}
	return found
}

// afterHang says what to do about a runtime that hangs, or hung.
func (v *view) afterHang(name string) string {
	cure := v.readLog(name)
	if v.cri {
		cure += "; if it hangs now, let it dump its goroutines (containerd and CRI-O: kill -USR1) before you restart it"
	}
	return cure + "; look at its state (ps: T is stopped, D waits for a disk) and at CPU and memory pressure"
}

// inHang reports whether a call waited for a runtime that answered nothing at all.
func (v *view) inHang(c *call) bool {
	return slices.ContainsFunc(v.hung, func(h hang) bool { return slices.Contains(h.calls, c) })
}
