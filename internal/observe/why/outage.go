package why

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// outages finds times in which a runtime was gone or slow.
func (v *view) outages() []Finding {
	var found []Finding
	all := v.outagesBy()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		for _, some := range apart(all[name]) {
			found = append(found, v.outagesAre(name, some))
		}
	}
	return found
}

const (
	calm      = 2 * time.Minute // a runtime that was up for so long has another outage afterwards, which is a finding by itself
	maxStreak = 4               // that are findings by themselves, beside the first; of more, the earliest are one finding
)

// apart returns the outages of a runtime that are one finding: those between which it was not up for long.
func apart(all []outage) [][]outage {
	var streaks [][]outage
	for i, o := range all {
		if i == 0 || o[0].Time.Sub(all[i-1].last().Time) >= calm {
			streaks = append(streaks, nil)
		}
		streaks[len(streaks)-1] = append(streaks[len(streaks)-1], o)
	}
	if over := len(streaks) - 1 - maxStreak; over > 0 {
		streaks = append([][]outage{slices.Concat(streaks[:over+1]...)}, streaks[over+1:]...)
	}
	return streaks
}

// outagesBy returns the outages of each runtime that had some.
func (v *view) outagesBy() map[string][]outage {
	changes, found := map[string][]*capture.Change{}, map[string][]outage{}
	for _, c := range v.changes {
		if c.IsCondition() {
			changes[c.Backend] = append(changes[c.Backend], c)
		}
	}
	for name, all := range changes {
		if outages := outagesOf(all); len(outages) > 0 {
			found[name] = outages
		}
	}
	return found
}

// An outage is what happened to a runtime in one: it became slow or gone, perhaps one after the other and, if it is over, up
// or no longer configured.
type outage []*capture.Change

func (o outage) last() *capture.Change { return o[len(o)-1] }

// until returns when an outage ended: now, if it goes on.
func (o outage) until(now time.Time) time.Time {
	if last := o.last(); !isBad(last) {
		return last.Time
	}
	return now
}

// died reports whether a runtime was gone otherwise than by hanging.
func died(c *capture.Change) bool { return c.What == capture.Gone && !hangs(c) }

// away reports whether a runtime was gone at a time, or answered nothing.
func (v *view) away(name string, at time.Time) bool {
	return slices.ContainsFunc(v.down[name], func(o outage) bool {
		i := slices.IndexFunc(o, func(c *capture.Change) bool { return c.What == capture.Gone })
		return i >= 0 && !at.Before(v.silentSince(o[i])) && !at.After(o.until(v.now))
	}) || slices.ContainsFunc(v.hung, func(h hang) bool {
		return h.backend == name && !at.Before(h.since) && !at.After(h.till)
	})
}

func isBad(c *capture.Change) bool { return c.What == capture.Slow || c.What == capture.Gone }

// outagesOf returns the outages among the changes of a runtime. A process that begins notes the condition as new, also if it
// is the one before: that is left out.
func outagesOf(all []*capture.Change) (found []outage) {
	if c := all[0]; c.What == capture.Up && (c.Was == capture.Gone || c.Was == capture.Slow) { // the outage began before the recording
		all = slices.Insert(all, 0, &capture.Change{Time: c.Since, Backend: c.Backend, What: c.Was})
	}
	var now outage
	for _, c := range all {
		switch {
		case isBad(c) && (now == nil || c.What != now.last().What):
			now = append(now, c)
		case now != nil && (c.What == capture.Up || c.What == capture.Removed):
			found, now = append(found, append(now, c)), nil
		}
	}
	if now != nil {
		found = append(found, now)
	}
	return found
}

// outagesAre returns the finding about some outages of a runtime, which follow one another.
func (v *view) outagesAre(name string, all []outage) Finding {
	bad := filter(slices.Concat(all...), isBad)
	causes, last := causesOf(bad), all[len(all)-1].last()
	f := Finding{Level: Warning, About: name, Backends: []string{name}, Since: bad[0].Time, Last: last.Time, Count: len(bad), Cure: v.readLog(name) + sinceNobody, Evidence: proofs(all, causes)}
	switch {
	case slices.ContainsFunc(bad, inCircle):
		f.Cure, f.Not = "run criproxy check: the socket of "+name+" leads back to this criproxy, perhaps through another proxy; give "+name+" the socket of a runtime", "the runtime: the call did not reach one"
	case !slices.ContainsFunc(bad, died) || isBad(last) && !slices.ContainsFunc(all[len(all)-1], died): // its process may hang
		f.Cure = v.afterHang(name)
	case slices.ContainsFunc(bad, hangs):
		f.Cure = v.afterHang(name) + sinceNobody
	}
	silent := v.silentShim(name, all)
	if silent != nil {
		f.shim, f.sandbox, f.Cure = silent.object(), silent.sandbox(), wakeShim
		f.Cause = "calls for statistics waited for the shim of " + f.shim + ", which did not answer"
		f.decided(silent)
	}
	often := conditions(bad)
	if len(causes) == 1 {
		often += reason(bad[0])
	}
	if f.Over = !isBad(last); f.Over {
		f.Text = fmt.Sprintf("%s was %s, from %s until %s%s", name, often, clock(bad[0].Time), clock(last.Time), eachCause(causes))
	} else {
		f.Since, f.Last = v.silentSince(last), v.now
		why := reason(last)
		if len(bad) > 1 {
			why = fmt.Sprintf("; from %s on it was %s%s", clock(bad[0].Time), often, eachCause(causes))
		}
		if f.Text = fmt.Sprintf("%s is %s since %s", name, last.What, clock(last.Time)); hangs(last) {
			f.Text = fmt.Sprintf("%s answers nothing since %s, and counts as gone since %s", name, clock(f.Since), clock(last.Time))
		}
		f.Text += why
		if last.What == capture.Gone {
			f.Level = Error
		}
	}
	var during []stretch
	for _, o := range all {
		during = append(during, stretch{v.silentSince(o[0]), o.until(v.now), isBad(o.last())})
	}
	happened, failed := v.meanwhile(name, during...)
	if f.Text, f.Show = f.Text+happened, selects(name, failed); f.Show == "" {
		f.Show = v.reasonsOf(name, bad, silent)
	}
	if silent != nil {
		if others := v.quick(name, during); len(others) > 0 {
			f.Text += fmt.Sprintf("; only calls for statistics hung: %s took at most %s", capture.Count(len(others), "other"), round(longest(others).took))
		}
	}
	if slices.ContainsFunc(during, func(s stretch) bool { return v.stood(s.from, s.to) }) {
		f.Not = "its clients: they asked. criproxy itself stood still for a part of this time"
	}
	return f
}

// silentShim returns a probe that shows why a runtime was slow, if only calls for statistics took long, which ask each shim: in each
// outage, the shim of one container did not answer.
func (v *view) silentShim(name string, all []outage) (first *call) {
	for _, o := range all {
		if slices.ContainsFunc(o, func(c *capture.Change) bool {
			return isBad(c) && (c.What != capture.Slow || !strings.Contains(c.Why, "Stats "))
		}) {
			return nil
		}
		i := slices.IndexFunc(v.calls, func(c *call) bool {
			return c.method == "ExecSync" && c.ofShim() && on(c) == name && (first == nil || c.object() == first.object()) &&
				!c.end().Before(o[0].Time.Add(-hung)) && !c.began.After(o.until(v.now))
		})
		if i < 0 {
			return nil
		}
		first = cmp.Or(first, v.calls[i])
	}
	return first
}

// quick returns what else than statistics and probes a runtime answered in some stretches, nothing if one of the calls took long.
func (v *view) quick(name string, in []stretch) []*call {
	all := filter(v.calls, func(c *call) bool {
		return c.meant(name) && !c.stream && !strings.Contains(c.method, "Stats") && !slices.Contains(waits, c.method) &&
			slices.ContainsFunc(in, func(s stretch) bool { return !c.began.Before(s.from) && !c.began.After(s.to) })
	})
	if slices.ContainsFunc(all, func(c *call) bool { return c.took >= leastWait }) {
		return nil
	}
	return filter(all, func(c *call) bool { return c.answered(name) })
}

// reasonsOf returns flags of criproxy view that select the calls that the reasons of changes of a runtime name, and one more that may
// be nil. It returns "" if there are none.
func (v *view) reasonsOf(name string, bad []*capture.Change, more *call) string {
	named := filter(v.calls, func(c *call) bool {
		return c == more || c.meant(name) && slices.ContainsFunc(bad, func(one *capture.Change) bool { return strings.Contains(one.Why, "/"+c.method+" ") })
	})
	if len(named) == 0 {
		return ""
	}
	return shown(named).Show + " -backend " + name
}

// selects returns flags of criproxy view that select calls that failed because of a runtime, "" if there are none.
func selects(name string, failed []*call) string {
	var ended []string
	for _, c := range failed {
		if code := c.code.String(); c.code <= codes.Unauthenticated && !slices.Contains(ended, code) { // others have no name
			ended = append(ended, code)
		}
	}
	if len(ended) == 0 {
		return ""
	}
	flags := "-status '" + strings.Join(ended, "|") + "'"
	if !slices.ContainsFunc(failed, func(c *call) bool { return !c.meant(name) }) {
		flags += " -backend " + name
	}
	return flags
}

// proofs returns the changes of outages as evidence. It shows the first outage, the latest ones, and for each cause the first
// outage that had it. Of an outage with many changes it shows the first and the last changes. It never leaves out a single
// change, because the line that says so would take as much room.
func proofs(all []outage, causes [][]*capture.Change) (lines []Proof) {
	left := func(i, j int) bool {
		first := func(c *capture.Change) bool {
			return slices.ContainsFunc(causes, func(one []*capture.Change) bool { return one[0] == c })
		}
		return i > 0 && i < len(all)-maxOutages && !slices.ContainsFunc(all[i], first) || j >= maxEnds && j < len(all[i])-maxEnds && !first(all[i][j])
	}
	var out []*capture.Change // left out, since the latest line
	flush := func() {
		switch len(out) {
		case 0:
		case 1:
			lines = append(lines, Proof{out[0].Time, out[0].String()})
		default:
			lines = append(lines, Proof{out[0].Time, "left out here: " + capture.Count(len(out), "change")})
		}
		out = nil
	}
	for i, o := range all {
		for j, c := range o {
			if left(i, j) {
				out = append(out, c)
				continue
			}
			flush()
			lines = append(lines, Proof{c.Time, c.String()})
		}
	}
	return lines
}

// inCircle reports whether a runtime is gone because calls to it come back: see interceptors.go in the server.
func inCircle(c *capture.Change) bool {
	return strings.Contains(c.Why, backend.CameBack)
}

// hangs reports whether a runtime is gone because it answers nothing.
func hangs(c *capture.Change) bool {
	return c.What == capture.Gone && backend.Hangs(c.Why)
}

// silentSince returns when a runtime that became slow or gone gave its last answer before, if it answered nothing until then;
// otherwise it returns the time of the change.
func (v *view) silentSince(c *capture.Change) time.Time {
	if !hangs(c) {
		return c.Time
	}
	var last time.Time
	for _, one := range v.calls {
		if one.answered(c.Backend) && one.end().Before(c.Time) {
			last = later(last, one.end())
		}
	}
	if last.IsZero() {
		return c.Time
	}
	return last
}

// causesOf puts the changes to one condition for one reason together, in the order in which they first appear. No more than
// maxCauses causes are named.
func causesOf(bad []*capture.Change) [][]*capture.Change {
	var causes [][]*capture.Change
	for _, c := range bad {
		i := slices.IndexFunc(causes, func(one []*capture.Change) bool { return one[0].What == c.What && one[0].Why == c.Why })
		if i >= 0 {
			causes[i] = append(causes[i], c)
		} else {
			causes = append(causes, []*capture.Change{c})
		}
	}
	return causes[:min(len(causes), maxCauses)]
}

// conditions says how often a runtime was gone and slow.
func conditions(bad []*capture.Change) string {
	var was []string
	for _, what := range []string{capture.Gone, capture.Slow} {
		if n := len(filter(bad, func(c *capture.Change) bool { return c.What == what })); n > 0 {
			was = append(was, what+" "+times(n))
		}
	}
	return strings.Join(was, " and ")
}

// eachCause says when a runtime was gone or slow and, if there are several causes, which and how often. Of one time it says
// nothing.
func eachCause(causes [][]*capture.Change) string {
	if len(causes) == 1 && len(causes[0]) == 1 {
		return ""
	}
	var each []string
	for _, one := range causes {
		what := ""
		if len(causes) > 1 {
			what = one[0].What + " " + times(len(one)) + reason(one[0]) + ", "
		}
		var at []string
		for _, c := range one[:min(len(one), maxCauses)] {
			at = append(at, clock(c.Time))
		}
		if len(one) > len(at) {
			at = append(at, "...")
		}
		each = append(each, what+"at "+strings.Join(at, ", "))
	}
	return ": " + strings.Join(each, "; ")
}

// reason returns the reason of a change in parentheses, or "".
func reason(c *capture.Change) string {
	if c.Why == "" {
		return ""
	}
	return " (" + c.Why + ")"
}

const (
	maxCauses  = 5 // that a finding names, each with as many times
	maxOutages = 4 // the latest ones that a finding shows, beside the first
	maxEnds    = 3 // changes at the beginning, and at the end, of an outage that a finding shows
)
