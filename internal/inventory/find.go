package inventory

import (
	"slices"
	"strings"
)

// A Match says which items of a kind have a name. Items that a call has created count before they are listed.
type Match struct {
	N      int  // how many ids begin with it; 1 if it is a whole id
	Whole  bool // it is a whole id
	Former bool // it was one, and no id begins with it now
}

// Match returns which items of a kind, in the lists of p, have a name. Items that a call has created count even without a draft,
// which is why a View cannot answer this.
func (inv *Inventory) Match(p *Plan, kind, name string) (m Match) {
	for _, plan := range p.Lists {
		if plan.Spec.Kind != kind {
			continue
		}
		l := inv.List(plan)
		l.settle()
		listed, n := l.items.resolve(name)
		if listed == name && n == 1 || l.changes[name].created {
			return Match{N: 1, Whole: true}
		}
		for id, c := range l.changes {
			if _, listed := l.items.get(id); c.created && !listed && strings.HasPrefix(id, name) {
				n++
			}
		}
		m.N, m.Former = max(m.N, n), m.Former || l.tombstones.has(name)
	}
	m.Former = m.Former && m.N == 0
	return m
}

// Counts returns how many items are listed of each kind.
func (v *View) Counts(p *Plan) map[string]int {
	counts := map[string]int{}
	for _, l := range p.Lists {
		if l.Spec.Kind != "" {
			counts[l.Spec.Kind] = len(v.items(l).ids)
		}
	}
	return counts
}

// resolve returns how many ids begin with name, and the last of them. If one is exactly name, it counts alone.
func (s *items) resolve(name string) (id string, n int) {
	if _, ok := s.get(name); ok {
		return name, 1
	}
	for _, one := range s.ids {
		if name != "" && strings.HasPrefix(one, name) {
			id, n = one, n+1
		}
	}
	return id, n
}

// byName returns the item that has one of names, as its id or as one of its other names. An id goes before other names, and may
// be cut short.
func (l *ListPlan) byName(s *items, names []string) ([]byte, bool) {
	for _, name := range names {
		if id, n := s.resolve(name); n == 1 {
			return s.get(id)
		}
	}
	for _, item := range s.bodies {
		for _, p := range l.names {
			found := false
			_ = p.All(item, func(v []byte) error {
				found = found || slices.Contains(names, string(v))
				return nil
			})
			if found {
				return item, true
			}
		}
	}
	return nil, false
}
