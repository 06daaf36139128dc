package why

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// view is what a rule sees.
type view struct {
	calls     []*call // of all clients, by the time they began; with those of criproxy
	changes   []*capture.Change
	pauses    []time.Time // around which events are missing
	now       time.Time
	missed    uint64
	hung      []hang
	down      map[string][]outage // see outagesBy; rules ask it about each call
	cri       bool                // of runtimes of CRI
	addresses map[string]string   // :: runtime → where it is, as far as the recording says

	conditions calls.Conditions
	begin      time.Time // before it, there may have been other calls
	whole      time.Time // from then on there are all calls; before, only those that failed, were slow or are notable
}

// complete returns the calls from the time on from which there are all.
func (v *view) complete() []*call {
	i, _ := slices.BinarySearchFunc(v.calls, v.whole, func(c *call, t time.Time) int { return c.began.Compare(t) })
	return v.calls[i:]
}

// view returns what there is to see for o.
func (l *Look) view(o Options) *view {
	v := &view{pauses: l.pauses, whole: l.whole, now: o.Now, missed: l.assembler.Missed(), cri: l.cri, addresses: l.addresses, conditions: l.conditions, begin: later(l.begin, o.Since)}
	if v.now.IsZero() {
		v.now = l.at
	}
	if l.at.IsZero() {
		v.begin = v.now
	}
	v.calls = filter(l.calls, func(c *call) bool { return !c.end().Before(o.Since) })
	for _, c := range l.assembler.UnderWay() {
		if c.Partial || !c.Began.After(l.torn) || l.lost[c] {
			continue // it may have ended
		}
		b := l.brief(c)
		b.took = max(v.now.Sub(b.began), b.took)
		answered := len(b.legs) > 0
		for i := range b.legs {
			if one := &b.legs[i]; !one.ended {
				one.took, answered = b.took, false
			}
		}
		if b.timeout > 0 && b.took > b.timeout+jump || answered && b.took > c.Took+jump {
			continue // it has ended: its deadline has passed, or all runtimes have answered
		}
		v.calls = append(v.calls, b)
	}
	v.changes = changesSince(l.changes, o.Since)
	slices.SortStableFunc(v.changes, func(a, b *capture.Change) int { return a.Time.Compare(b.Time) })
	slices.SortStableFunc(v.calls, func(a, b *call) int { return a.began.Compare(b.began) })
	v.hung, v.down = v.hangsOf(), v.outagesBy()
	return v
}

// concerns reports whether a call is about a pod, as [Options] name it.
func (c *call) concerns(pod string) bool {
	return c.about.Pod != "" && (pod == c.about.Pod || pod == c.pod() || pod == c.about.UID) ||
		slices.ContainsFunc(c.about.IDs, func(id string) bool { return len(pod) >= 4 && strings.HasPrefix(id, pod) })
}

// concerns reports whether a finding is about a pod, or about its runtime or the whole node while it was there. A pod that no call
// is about may be on any runtime, and was there at any time.
func (v *view) concerns(f *Finding, pod string) bool {
	about := filter(v.calls, func(c *call) bool { return c.concerns(pod) })
	if len(f.Pods) > 0 {
		return slices.ContainsFunc(about, func(c *call) bool { return slices.Contains(f.Pods, c.pod()) })
	}
	if f.Over && v.began(about).After(f.Last.Add(retry("RunPodSandbox"))) || v.endedBefore(about, f.Since) {
		return false
	}
	on := runtimesOf(filter(about, func(c *call) bool { return len(c.legs) == 1 }))
	return len(on) == 0 || len(f.Backends) == 0 || slices.ContainsFunc(f.Backends, func(name string) bool { return slices.Contains(on, name) })
}

// began returns when the pod began that calls are about, zero if it may have been there before. The first call about a new pod
// makes its sandbox.
func (v *view) began(about []*call) (t time.Time) {
	if len(about) > 0 && about[0].method == "RunPodSandbox" && !about[0].began.Before(v.whole) {
		t = about[0].began
	}
	return t
}

// endedBefore reports whether the one pod that calls are about ended before a time.
func (v *view) endedBefore(about []*call, t time.Time) bool {
	pods := podsOf(about)
	if len(pods) != 1 {
		return false
	}
	end := v.ended(pods[0], time.Time{})
	return end != nil && end.end().Before(t)
}

// blind reports whether the recording has only what clients saw.
func (v *view) blind() bool {
	return !slices.ContainsFunc(v.calls, func(c *call) bool { return len(c.legs) > 0 })
}

// paused reports whether events are missing between two times.
func (v *view) paused(from, to time.Time) bool {
	return slices.ContainsFunc(v.pauses, func(t time.Time) bool { return !t.Before(from) && !t.After(to) })
}

// of returns the calls of some methods, of any without methods, for which ok returns true, without those that were lost.
func (v *view) of(ok func(*call) bool, methods ...string) []*call {
	return filter(v.calls, func(c *call) bool {
		return !c.own && (len(methods) == 0 || slices.Contains(methods, c.method)) && !v.lost(c) && ok(c)
	})
}

// lost reports whether a call has no answer because its runtime was gone, or answered nothing at all. That is a finding about the
// runtime, and about nothing else: two findings of one report must not give a call two causes.
func (v *view) lost(c *call) bool {
	switch {
	case c.ok():
		return false
	case c.failed() && c.code == codes.Unavailable && backend.NameIn(c.message) != "":
		of := causeOf(c.method, c.message)
		return of == nil || !of.misfit // it is gone because of its answer to another call
	case c.ended && !c.gaveUp():
		return false
	}
	return slices.ContainsFunc(c.legs, func(one leg) bool {
		return (!one.ended || one.code != codes.OK) && v.away(one.backend, c.end())
	})
}

// unasked reports whether criproxy has not asked a runtime for the answer to a call.
func (v *view) unasked(c *call) bool { return len(c.legs) == 0 && !v.blind() }

// notAsked says of a call which criproxy did not pass on that the runtime is not to blame.
const notAsked = "the runtime: it was not asked"

// next returns the first later call that a runtime answered and for which ok returns true, or nil.
func (v *view) next(after *call, runtime string, ok func(*call) bool) *call {
	for _, c := range v.calls {
		if c.began.After(after.began) && c.answered(runtime) && ok(c) {
			return c
		}
	}
	return nil
}

// groups puts calls with the same key together, in the order in which the keys first appear. It leaves out calls
// without a key.
func groups(all []*call, key func(*call) string) [][]*call {
	var order []string
	found := map[string][]*call{}
	for _, c := range all {
		k := key(c)
		if k == "" {
			continue
		}
		if found[k] == nil {
			order = append(order, k)
		}
		found[k] = append(found[k], c)
	}
	var grouped [][]*call
	for _, k := range order {
		grouped = append(grouped, found[k])
	}
	return grouped
}
