package why

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// whose returns whose calls count, and which do: those of kubelet, or of all clients if none of them is kubelet.
func (v *view) whose() (name string, counts func(*call) bool) {
	if slices.ContainsFunc(v.calls, (*call).kubelet) {
		return "kubelet", func(c *call) bool { return !c.own && c.kubelet() }
	}
	return "clients", func(c *call) bool { return !c.own }
}

// waitsForShim reports whether a call is like another one that failed because a shim did not answer.
func (v *view) waitsForShim(c *call) bool {
	return slices.ContainsFunc(v.calls, func(o *call) bool { return o.method == c.method && o.object() == c.object() && o.ofShim() })
}

// A stretch is a part of the time that a recording covers.
type stretch struct {
	from, to time.Time
	goesOn   bool // to is now
}

// meanwhile says what happened in some stretches, the earliest first, to the calls that count, as far as calls of that time were
// looked at, and returns those that failed.
func (v *view) meanwhile(backend string, in ...stretch) (text string, failed []*call) {
	cached, sandboxes, waiting := 0, 0, 0
	whose, counts := v.whose()
	for _, c := range v.calls {
		if !counts(c) || !slices.ContainsFunc(in, func(s stretch) bool { return !c.end().Before(s.from) && !c.began.After(s.to) }) {
			continue
		}
		here := slices.ContainsFunc(c.legs, func(one leg) bool { return one.backend == backend })
		switch {
		case !c.ended:
			if !c.stream && c.took >= leastWait && in[len(in)-1].goesOn && !v.waitsForShim(c) && slices.ContainsFunc(c.legs, func(one leg) bool { return one.backend == backend && !one.ended }) {
				waiting++
			}
		case len(c.cached) > 0:
			cached++
		case c.failedBy(backend):
			if slices.ContainsFunc(in, func(s stretch) bool { return !c.end().Before(s.from) && !c.end().After(s.to.Add(jump)) }) {
				failed = append(failed, c)
			}
		case c.method == "RunPodSandbox" && c.ok() && here:
			sandboxes++
		}
	}
	var all []string
	for _, one := range []struct {
		n    int
		what string
	}{{cached, "answered from the cache"}, {len(failed), "failed"}, {sandboxes, "made a new sandbox"}, {waiting, map[bool]string{true: "is waiting", false: "are waiting"}[waiting == 1]}} {
		if one.n > 0 {
			all = append(all, fmt.Sprintf("%d %s", one.n, one.what))
		}
	}
	if len(all) > 0 {
		text = "; of the calls of " + whose + ", " + strings.Join(all, ", ")
	}
	if pods := podsOf(failed); len(pods) > 0 {
		text += "; those that failed were of " + and(few(pods))
	}
	if from := in[0].from; from.Before(v.begin.Add(-jump)) || from.Before(v.whole) {
		return text + "; not all calls before " + clock(later(v.begin, v.whole)) + " were looked at", failed
	}
	return cmp.Or(text, "; no call of "+whose+" failed because of it"), failed
}
