package why

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/criproxy/criproxy/internal/observe/capture"
)

// hung is how long a runtime answers nothing before why reports it.
const hung = 10 * time.Second

// leastWait is how long a call is not answered before it counts as one that waited.
const leastWait = time.Second

// waits are methods that may take long without fault of the runtime.
var waits = []string{"PullImage", "StopContainer", "StopPodSandbox", "RunPodSandbox", "CreateContainer", "StartContainer", "ExecSync"}

// A hang is a time in which a runtime answered nothing, although calls waited for it.
type hang struct {
	backend     string
	since, till time.Time // when the first call began to wait, and until when one waited
	again       time.Time // when it answered next; zero if it has not
	calls       []*call   // that waited
}

// hangsOf returns the times in which runtimes answered nothing, although they were asked several things. A call waits until it
// is answered, or until its client or criproxy ends it.
func (v *view) hangsOf() []hang {
	var found []hang
	open, answered := map[string][]*call{}, map[string]time.Time{} // :: runtime → calls that it has not answered, and when it answered last
	type step struct {
		at   time.Time
		name string // of the runtime
		c    *call
		end  bool
	}
	var steps []step
	begin := func(c *call) time.Time { return c.began.Add(c.legs[0].after) }
	for _, c := range v.complete() {
		if c.stream {
			continue
		}
		if len(c.legs) == 1 && !slices.Contains(waits, c.method) {
			steps = append(steps, step{begin(c), c.legs[0].backend, c, false})
		}
		for _, one := range c.legs {
			if len(c.legs) == 1 && c.replied() || len(c.legs) > 1 && one.ended && one.code == codes.OK {
				steps = append(steps, step{c.began.Add(one.after + one.took), one.backend, c, true})
			}
		}
	}
	slices.SortStableFunc(steps, func(a, b step) int { return a.at.Compare(b.at) })
	close := func(name string, at, again time.Time) {
		h := hang{backend: name, again: again}
		for _, c := range open[name] {
			from, till := later(begin(c), answered[name]), at
			if c.ended && c.end().Before(at) {
				till = c.end()
			}
			if till.Sub(from) < leastWait {
				continue
			}
			if h.calls == nil {
				h.since = from
			}
			h.till, h.calls = later(h.till, till), append(h.calls, c)
		}
		if len(methodsOf(h.calls)) > 2 && h.till.Sub(h.since) >= hung && !v.paused(h.since, h.till) && !v.stood(h.since, h.till) {
			found = append(found, h)
		}
	}
	for _, s := range steps {
		if !s.end {
			open[s.name] = append(open[s.name], s.c)
			continue
		}
		close(s.name, s.at, s.at)
		answered[s.name] = s.at
		open[s.name] = slices.DeleteFunc(open[s.name], func(c *call) bool { return c == s.c || c.ended && !c.end().After(s.at) })
	}
	for _, name := range slices.Sorted(maps.Keys(open)) {
		close(name, v.now, time.Time{})
	}
	return found
}

// hangs finds runtimes that answered nothing for some time, and whose condition did not say so.
func (v *view) hangs() []Finding {
	var found []Finding
	outages := v.outagesBy()
	for _, h := range v.hung {
		if slices.ContainsFunc(outages[h.backend], func(o outage) bool {
			return !o[0].Time.After(h.till) && !o.until(v.now).Before(h.since)
		}) {
			continue // see outages
		}
		f := shown(h.calls)
		f.About, f.Level, f.Pods, f.Backends = h.backend, Error, nil, []string{h.backend}
		f.Since, f.Last, f.Show = h.since, h.till, f.Show+" -backend "+h.backend
		f.decided(longest(h.calls))
		f.Text = fmt.Sprintf("%s answered nothing for %s, from %s on: %s waited (%s)", h.backend, round(f.Last.Sub(f.Since)), clock(f.Since), capture.Count(len(h.calls), "call"), and(methodsOf(h.calls)))
		f.Cause = "its process hung or was stopped, or got no time of a processor"
		if !h.again.IsZero() {
			f.end("; it answers again since " + clock(h.again))
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
