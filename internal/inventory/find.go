package inventory

import (
	"slices"
	"strings"
)

// Holds returns how many items of a kind, in the lists of p, have an id that begins with name, and 1 if one of them is exactly
// name. Items that a call has created count before they are listed.
func (inv *Inventory) Holds(p *Plan, kind, name string) (n int) {
	for _, l := range p.Lists {
		if l.Spec.Kind == kind {
			n = max(n, inv.List(l).holds(name))
		}
	}
	return n
}

// Has reports whether there is an item of a kind with exactly this id.
func (inv *Inventory) Has(p *Plan, kind, id string) bool {
	return slices.ContainsFunc(p.Lists, func(l *ListPlan) bool { return l.Spec.Kind == kind && inv.List(l).has(id) })
}

// Held reports whether there was an item of a kind with this id, and is no more.
func (inv *Inventory) Held(p *Plan, kind, id string) bool {
	return slices.ContainsFunc(p.Lists, func(l *ListPlan) bool {
		return l.Spec.Kind == kind && inv.List(l).holds(id) == 0 && inv.List(l).former.has(id)
	})
}

// Counts returns how many items are listed of each kind.
func (inv *Inventory) Counts(p *Plan) map[string]int {
	counts := map[string]int{}
	for _, l := range p.Lists {
		if l.Spec.Kind != "" {
			counts[l.Spec.Kind] = len(inv.View().items(l).ids)
		}
	}
	return counts
}

// has reports whether an item has exactly this id.
func (l *Listing) has(id string) bool {
	l.settle()
	_, listed := l.items.get(id)
	return listed || l.changes[id].created
}

// holds is Holds for one list.
func (l *Listing) holds(name string) int {
	if l.has(name) {
		return 1
	}
	_, n := l.items.resolve(name)
	for id, c := range l.changes {
		if _, listed := l.items.get(id); c.created && !listed && strings.HasPrefix(id, name) {
			n++
		}
	}
	return n
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

// byName returns the item that has one of names, as its id or as one of its other names.
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
