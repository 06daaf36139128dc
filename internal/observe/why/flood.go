package why

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/criproxy/criproxy/internal/observe/capture"
)

var flood = Rule{
	Name:     "flood",
	Symptoms: []string{"too many requests*cri", "resourceexhausted"},
	Means:    "a client other than kubelet makes most of the calls, or takes most of the runtime's time.",
	Shown:    "the number of calls, and the time that they took, of each client",
	Not:      "kubelet: its own calls are fewer",
	Cure:     "find the process by its name, and let it ask less often: an agent that lists containers in a loop should follow events instead (GetContainerEvents). access in criproxy's configuration gives it a socket of its own, with a limit",
	find:     floods,
}

const (
	floodTime  = 10 * time.Second // a flood lasts at least so long
	floodRate  = 10.0             // calls in a second, at least: an agent that asks for each container makes some
	floodShare = 2                // times as many calls as kubelet makes
)

func floods(v *view) []Finding {
	by := map[string][]*call{}
	kubelet := 0
	for _, c := range v.complete() {
		switch {
		case c.own || c.stream:
		case c.kubelet():
			kubelet++
		case c.from != "client":
			by[c.from] = append(by[c.from], c)
		}
	}
	if kubelet == 0 {
		return nil // not a node
	}
	var found []Finding
	for _, from := range slices.Sorted(maps.Keys(by)) {
		all := longestBurst(by[from])
		f := shown(all)
		lasted := f.Last.Sub(f.Since)
		rate := float64(len(all)) / max(lasted.Seconds(), 1)
		during := len(filter(v.complete(), func(c *call) bool { return c.kubelet() && !c.began.Before(f.Since) && !c.began.After(f.Last) }))
		if lasted < floodTime || rate < floodRate || len(all) < floodShare*during {
			continue
		}
		counts := map[string]int{}
		for _, c := range all {
			counts[c.method]++
		}
		methods := slices.SortedFunc(maps.Keys(counts), func(a, b string) int { return cmp.Or(counts[b]-counts[a], cmp.Compare(a, b)) })
		f.About, f.Pods, f.Show = from, nil, "-client "+from
		f.Text = fmt.Sprintf("%s made %s in %s, %.0f in a second, mostly %s; kubelet made %d in the same time", from, capture.Count(len(all), "call"), round(lasted), rate, methods[0], during)
		f.Over = v.now.Sub(f.Last) > floodTime
		found = append(found, f)
	}
	return found
}

// longestBurst returns the most calls of a client between which it never paused for long.
func longestBurst(all []*call) (most []*call) {
	for begin, i := 0, 1; i <= len(all); i++ {
		if i < len(all) && all[i].began.Sub(all[i-1].began) < floodTime {
			continue
		}
		if i-begin >= len(most) {
			most = all[begin:i]
		}
		begin = i
	}
	return most
}
