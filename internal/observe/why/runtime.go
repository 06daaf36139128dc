package why

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

var runtimeChanged = Rule{
	Name:     "runtime",
	Symptoms: []string{"container runtime is*down", "container runtime not ready", "container runtime sanity check failed", "error while dialing", "connection refused*containerd.sock", "transport is closing", "runtimenotready"},
	Means:    "a runtime was gone (its process ended or hung), slow, or is another one than before.",
	Shown:    "the changes of the runtime's condition and address that criproxy noticed, the version that it reports before and after, and what happened to kubelet's calls meanwhile",
	Not:      "criproxy or its clients: they ran, and asked",
	Cure:     "read the runtime's log at that time (journalctl -u containerd, or crio)" + sinceNobody,
	find: func(v *view) []Finding {
		return slices.Concat(v.outages(), v.unreached(), v.remembered(), v.hangs(), v.versions(), v.moves())
	},
}

// outages finds times in which a runtime was gone or slow.
func (v *view) outages() []Finding {
	var found []Finding
	byBackend := map[string][]*capture.Change{}
	var order []string
	for _, c := range v.changes {
		if c.Backend == "" {
			continue
		}
		if byBackend[c.Backend] == nil {
			order = append(order, c.Backend)
		}
		byBackend[c.Backend] = append(byBackend[c.Backend], c)
	}
	for _, name := range order {
		var bad []*capture.Change // the changes to slow or gone that count
		all := byBackend[name]
		if c := all[0]; c.What == capture.Up && (c.Was == capture.Gone || c.Was == capture.Slow) { // the outage began before the recording
			all = slices.Insert(all, 0, &capture.Change{Time: c.Since, Backend: name, What: c.Was})
		}
		for _, c := range all {
			if c.What == capture.Gone || c.What == capture.Slow {
				bad = append(bad, c)
			}
		}
		if len(bad) == 0 {
			continue
		}
		last, begun := all[len(all)-1], bad[0].Time
		if i := slices.Index(all, bad[len(bad)-1]) + 1; i < len(all) {
			last = all[i] // later ones say again that it is up, as after a restart of criproxy
		}
		for i := len(all) - 1; i >= 0 && all[i].What != capture.Up && all[i].What != capture.Removed; i-- {
			begun = all[i].Time
		}
		causes := causesOf(bad)
		f := Finding{Level: Warning, About: name, Backends: []string{name}, Since: bad[0].Time, Last: last.Time, Count: len(bad), Cure: v.readLog(name) + sinceNobody}
		switch {
		case slices.ContainsFunc(bad, inCircle):
			f.Cure, f.Not = "run criproxy check: the socket of "+name+" leads back to this criproxy, perhaps through another proxy; give "+name+" the socket of a runtime", "the runtime: the call did not reach one"
		case !slices.ContainsFunc(bad, endedProcess):
			f.Cure = v.afterHang(name)
		}
		left, omitted := 0, 0
		for i, c := range all {
			if i == 0 || i >= len(all)-maxChanges || slices.ContainsFunc(causes, func(one []*capture.Change) bool { return one[0] == c }) {
				f.Evidence = append(f.Evidence, Proof{c.Time, c.String()})
			} else if left++; left == 1 {
				omitted = len(f.Evidence)
				f.Evidence = append(f.Evidence, Proof{Time: c.Time})
			}
		}
		if left > 0 {
			f.Evidence[omitted].Text = fmt.Sprintf("left out here: %s, which criproxy events -backend %s shows", capture.Count(left, "change"), name)
		}
		why, each := reason(bad[0]), ""
		if len(bad) > 1 {
			why, each = "", eachCause(causes)
		}
		switch over := last.What == capture.Up || last.What == capture.Removed; {
		case over:
			f.Over = true
			f.Text = fmt.Sprintf("%s was %s%s, from %s until %s%s", name, conditions(bad), why, clock(bad[0].Time), clock(last.Time), each)
		default:
			f.Last = v.now
			f.Since = begun
			f.Text = fmt.Sprintf("%s is %s since %s%s", name, last.What, clock(last.Time), why)
			if len(bad) > 1 {
				f.Text += fmt.Sprintf("; from %s on it was %s%s", clock(bad[0].Time), conditions(bad), each)
			}
			if last.What == capture.Gone {
				f.Level = Error
			}
		}
		from := v.silentSince(bad[0])
		f.Text += v.meanwhile(name, from, f.Last)
		if slices.ContainsFunc(v.calls, func(c *call) bool {
			return !c.own && c.failed() && (c.code == codes.Unavailable || c.code == codes.DeadlineExceeded) && !c.end().Before(from) && !c.began.After(f.Last)
		}) {
			f.Show = "-status 'Unavailable|DeadlineExceeded'"
		}
		found = append(found, f)
	}
	return found
}

// endedProcess reports whether a change looks like the end of a runtime's process, and not like one that hangs.
func endedProcess(c *capture.Change) bool { return c.What == capture.Gone && !hangs(c) }

// inCircle reports whether a runtime is gone because calls to it come back: see interceptors.go in the server.
func inCircle(c *capture.Change) bool {
	return strings.Contains(c.Why, "came back to the criproxy that passed it on")
}

// hangs reports whether a runtime is gone because it answers nothing.
func hangs(c *capture.Change) bool {
	return c.What == capture.Gone && strings.Contains(c.Why, "has answered nothing")
}

// silentSince returns when a runtime that became slow or gone gave its last answer before, if it answered nothing until then;
// otherwise it returns the time of the change.
func (v *view) silentSince(c *capture.Change) time.Time {
	if !hangs(c) {
		return c.Time
	}
	var last time.Time
	for _, one := range v.calls {
		answered := one.ok() && slices.ContainsFunc(one.legs, func(l leg) bool { return l.backend == c.Backend })
		if answered && one.end().Before(c.Time) && one.end().After(last) {
			last = one.end()
		}
	}
	if last.IsZero() {
		return c.Time
	}
	return last
}

// causesOf puts the changes to one condition for one reason together, in the order in which they first appear. No more than
// maxChanges causes are named.
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
	return causes[:min(len(causes), maxChanges)]
}

// conditions says how often a runtime was gone and slow.
func conditions(bad []*capture.Change) string {
	var was []string
	for _, what := range []string{capture.Gone, capture.Slow} {
		n := 0
		for _, c := range bad {
			if c.What == what {
				n++
			}
		}
		if n > 0 {
			was = append(was, what+" "+times(n))
		}
	}
	return strings.Join(was, " and ")
}

// eachCause says each cause, how often it was so, and when.
func eachCause(causes [][]*capture.Change) string {
	var text strings.Builder
	for _, one := range causes {
		var at []string
		for _, c := range one[:min(len(one), maxChanges)] {
			at = append(at, clock(c.Time))
		}
		fmt.Fprintf(&text, "; %s %s, at %s", one[0].What, times(len(one)), strings.Join(at, ", "))
		if len(one) > len(at) {
			text.WriteString(", ...")
		}
		text.WriteString(reason(one[0]))
	}
	return text.String()
}

// reason returns the reason of a change in parentheses, or "".
func reason(c *capture.Change) string {
	if c.Why == "" {
		return ""
	}
	return " (" + calls.Cut(c.Why, 120) + ")"
}

// readLog says whose log to read. A runtime of CRI has a unit that is known; the server of another API has a name and an
// address.
func (v *view) readLog(name string) string {
	of := "read the log of " + name
	if at := v.addresses[name]; at != "" {
		of += ", which is at " + at + ","
	}
	of += " at that time"
	if v.cri {
		of += " (journalctl -u containerd, or crio)"
	}
	return of
}

// sinceNobody says what to look for in the log of a runtime that was gone.
const sinceNobody = ". If nobody restarted it, look for the OOM killer (dmesg), a panic, or a disk that hangs"

// leastUnreached is how many calls must not reach a runtime before why reports it.
const leastUnreached = 3

// unreached finds runtimes that calls of kubelet did not reach, or those of any client if none is kubelet, in recordings that
// lack their conditions.
func (v *view) unreached() []Finding {
	recorded := map[string]bool{}
	for _, c := range v.changes {
		recorded[c.Backend] = true
	}
	kubelet := slices.ContainsFunc(v.calls, (*call).kubelet)
	failed := filter(v.calls, func(c *call) bool {
		return (c.kubelet() || !kubelet && !c.own) && c.failed() && c.code == codes.Unavailable
	})
	var found []Finding
	for _, all := range groups(failed, func(c *call) string { return notReached(c.message) }) {
		name := notReached(all[0].message)
		if recorded[name] || len(all) < leastUnreached {
			continue
		}
		f, last := shown(all), all[len(all)-1]
		f.About, f.Level, f.Pods, f.Backends, f.Show = name, Error, nil, []string{name}, "-status Unavailable"
		f.Cure = v.readLog(name) + sinceNobody
		whose := "kubelet"
		if !kubelet {
			whose = "clients"
		}
		f.Text = fmt.Sprintf("calls of "+whose+" did not reach %s, %s from %s on; the last answer was: %s", name, times(len(all)), clock(f.Since), calls.Cut(last.message, 200))
		for _, c := range v.calls {
			if answered := slices.ContainsFunc(c.legs, func(one leg) bool { return one.backend == name && one.ended }); answered && c.ok() && c.began.After(last.began) {
				f.Over, f.Level = true, Warning
				f.Text += "; it answers again since " + clock(c.began)
				f.decided(c)
				break
			}
		}
		found = append(found, f)
	}
	return found
}

// remembered finds runtimes for which memory answered, in recordings that lack their conditions.
func (v *view) remembered() []Finding {
	if !v.inferred {
		return nil
	}
	byBackend := map[string][]*call{}
	for _, c := range v.calls {
		for _, name := range c.memory {
			byBackend[name] = append(byBackend[name], c)
		}
	}
	var found []Finding
	for _, name := range slices.Sorted(maps.Keys(byBackend)) {
		all := byBackend[name]
		f, last := shown(all), all[len(all)-1]
		f.About, f.Pods, f.Backends, f.Show = name, nil, []string{name}, "-memory -backend "+name
		f.Cure = v.readLog(name) + sinceNobody
		f.Text = fmt.Sprintf("%s was slow or gone: memory answered for it in %s, from %s until %s", name, capture.Count(len(all), "call"), clock(f.Since), clock(f.Last))
		f.Over = slices.ContainsFunc(v.calls, func(c *call) bool {
			return c.ok() && c.began.After(last.began) && slices.ContainsFunc(c.legs, func(one leg) bool { return one.backend == name && one.ended })
		})
		found = append(found, f)
	}
	return found
}

// notReached returns the runtime that criproxy could not reach, as it says in its answer, or "".
func notReached(message string) string {
	_, rest, _ := strings.Cut(message, "criproxy: backend ")
	for _, words := range []string{" cannot be reached at ", " is gone since "} {
		if name, _, ok := strings.Cut(rest, words); ok {
			return name
		}
	}
	return ""
}

// maxChanges is how many of the latest changes of a condition a finding shows, beside the first.
const maxChanges = 5

// meanwhile says what happened to the calls of kubelet between two times, or to those of all clients if none of them is
// kubelet.
func (v *view) meanwhile(backend string, from, to time.Time) string {
	failed, remembered, sandboxes := 0, 0, 0
	whose, any := "kubelet", slices.ContainsFunc(v.calls, (*call).kubelet)
	if !any {
		whose = "clients"
	}
	for _, c := range v.calls {
		if c.own || any && !c.kubelet() || c.end().Before(from) || c.began.After(to) {
			continue
		}
		here := false
		for _, one := range c.legs {
			here = here || one.backend == backend
		}
		switch {
		case len(c.memory) > 0:
			remembered++
		case c.failed() && (here || c.code == codes.Unavailable):
			failed++
		case c.method == "RunPodSandbox" && c.ok() && here:
			sandboxes++
		}
	}
	var all []string
	for _, one := range []struct {
		n    int
		what string
	}{{remembered, "answered from memory"}, {failed, "failed"}, {sandboxes, "made a new sandbox"}} {
		if one.n > 0 {
			all = append(all, fmt.Sprintf("%d %s", one.n, one.what))
		}
	}
	if len(all) == 0 {
		return "; no call of " + whose + " failed because of it"
	}
	return "; of the calls of " + whose + ", " + strings.Join(all, ", ")
}

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
		methods := map[string]bool{}
		for _, c := range all {
			methods[c.method] = true
		}
		if len(methods) > 2 && at.Sub(since[name]) >= hung && !v.paused(since[name], at) {
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
	for name := range waiting {
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
		f.Text = fmt.Sprintf("%s answered nothing for %s, from %s on: %s waited (%s)", h.backend, round(f.Last.Sub(f.Since)), clock(f.Since), capture.Count(len(h.calls), "call"), methodsOf(h.calls))
		f.Cause = "its process hung or was stopped, or got no time of a processor"
		if h.over {
			f.Over, f.Level = true, Warning
			f.Text += "; it answers again since " + clock(f.Last)
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

// versions finds runtimes that report another version than before.
func (v *view) versions() []Finding {
	var found []Finding
	before, by := map[string]string{}, map[string]*call{} // :: runtime → its version, and the latest call that it answered with it
	for _, c := range v.calls {
		if c.method != "Version" {
			continue
		}
		for _, one := range c.legs {
			said := one.said
			if said == "" && len(c.legs) == 1 {
				said = c.said // recordings have a message once
			}
			if said == "" {
				continue
			}
			if was := before[one.backend]; was != "" && was != said {
				f := Finding{Level: Note, About: one.backend, Backends: []string{one.backend}, Since: c.began, Last: c.began, Over: true, Count: 1,
					Text: fmt.Sprintf("%s is %s since %s; before it was %s", one.backend, said, clock(c.began), was),
					Cure: "if nobody has upgraded or replaced it, find out who did",
					Show: "-own -method Version -backend " + one.backend + " -full"}
				f.decided(by[one.backend], c)
				found = append(found, f)
			}
			before[one.backend], by[one.backend] = said, c
		}
	}
	return found
}

// settled is how long kubelet may take to make its pods anew on another runtime.
const settled = time.Minute

// configured says when a runtime got another address.
var configured = map[string]string{
	capture.Reloaded: "criproxy's configuration changed", capture.Serving: "criproxy started with this configuration", capture.HandedOver: "criproxy took over with this configuration",
}

// moves finds runtimes that have got another address.
func (v *view) moves() []Finding {
	var found []Finding
	for _, c := range v.changes {
		how := configured[c.What]
		if how == "" {
			continue // another reason may quote anything
		}
		for part := range strings.SplitSeq(c.Why, "; ") {
			name, _, moved := strings.Cut(part, capture.NowAt)
			if !moved {
				continue
			}
			cure := "if this is another server and nobody meant to replace the one before, put its address back: what clients made there still is there"
			if v.cri {
				cure = "if this is another runtime and nobody meant to replace the one before, put its address back: its pods still run there, and kubelet no longer sees them. Otherwise drain the node first, or end these pods with crictl --runtime-endpoint and the address before"
			}
			found = append(found, Finding{Level: Note, About: name, Backends: []string{name}, Since: c.Time, Last: c.Time, Over: true, Count: 1,
				Text:     fmt.Sprintf("%s; %s at %s%s", part, how, clock(c.Time), v.meanwhile(name, c.Time, c.Time.Add(settled))),
				Cure:     cure,
				Evidence: []Proof{{c.Time, c.String()}}, Show: "-own -method Version -backend " + name + " -full"})
		}
	}
	return found
}
