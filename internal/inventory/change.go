package inventory

import (
	"bytes"
	"maps"
	"slices"
	"time"

	"github.com/criproxy/criproxy/rewrite"
)

// A Note is a call to a backend that may have changed something there.
type Note struct {
	Method  string // full name
	Request []byte
	Reply   []byte // nil if the call failed
	OK      bool
}

// The latest answer lacks the changes that clients have made since. This file makes them:
//
//   - An item that a client has created. Its draft stands in the list until the backend
//     lists it: a list must not lack a pod whose id a client has got already.
//   - An item that a client has removed. It leaves the list at once.
//   - An item that a client has started or stopped. It has its new state at once.
//
// The backend may answer a request that was made before the change after it. So an item stays as the
// call left it until the answer to a later request, or one that shows the item as it is after.

// change is what calls have done to an item: created it, given it a state, or else the last one has removed it.
type change struct {
	before  uint64 // the latest request before
	created bool
	state   *rewrite.Path // nil: it has the state that the backend says
	was     []uint64      // the states that it may have had before, and has no longer
}

// follows reports whether the answer to an earlier request shows the item as it is after the change.
func (c change) follows(item []byte, listed bool) bool {
	switch {
	case !listed:
		return !c.created
	case c.state == nil:
		return c.created
	}
	state, _, err := c.state.LookupVarint(item)
	return err == nil && !slices.Contains(c.was, state)
}

// Note notes what a call may have changed, even if it failed, as p says. It returns the lists in question. now is the time
// at which the call ended.
func (inv *Inventory) Note(p *Plan, n Note, now time.Time) (changed []*Listing) {
	for _, e := range p.effects[n.Method] {
		l := inv.List(e.list)
		if shown := l.note(e, n, now); n.OK && !shown {
			l.Invalidate(now)
		} else {
			l.noteChange()
		}
		changed = append(changed, l)
	}
	return changed
}

// note does the work of Note for one list, and reports whether that shows all that the call has changed.
func (l *Listing) note(e effect, n Note, now time.Time) (shown bool) {
	if e.created == nil {
		return e.request != nil && l.change(e, n.Request, n.OK)
	}
	id, _, err := e.created.Lookup(n.Reply)
	if !n.OK || err != nil || len(id) == 0 {
		return false
	}
	item := e.draft.of(e.list.id, id, n.Request, now)
	l.create(string(id), item)
	return item != nil
}

// change notes that a call has changed or removed the items that its request names, or may have done so if it failed. Their
// statuses are out of date, or due. Only an exact name removes an item, perhaps one that only a late answer lists. shown
// reports whether the items show the whole change now.
func (l *Listing) change(on effect, request []byte, changed bool) (shown bool) {
	name, _, err := on.request.Lookup(request)
	if err != nil || len(name) == 0 {
		return false
	}
	l.settle()
	if !on.list.AsksStatus() {
		for _, same := range on.list.equivalents(string(name)) {
			l.renamed[same] = l.inv.asked
		}
		// The name may be the item's id, or another one. Then the item keeps others, or goes with its only one: the backend must
		// say which.
		if _, listed := l.items.get(string(name)); !listed || !changed || !on.removes {
			return false
		}
		l.remove(string(name))
		return true
	}
	shown = changed && on.becomes != nil // unless an item has a state of which this is unknown
	mark := func(id string) {
		item, _ := l.items.get(id)
		if changed {
			l.changesWhole(item)
			shown = l.becomes(id, on.becomes) && shown
			l.outdate(id) // the file must not hold the old status either
			return
		}
		l.wanted[id] = true
		if whole, id := l.wholeOf(item); whole != nil {
			whole.wanted[id] = true
		}
	}
	removed := changed && on.removes
	if on.item == nil {
		id, n := l.items.resolve(string(name))
		if removed {
			l.remove(string(name))
		}
		if n == 1 && !(removed && id == string(name)) {
			mark(id)
			return shown
		}
		return removed || shown
	}
	if removed {
		mark = l.remove
		l.emptied[string(name)] = emptied{on.item, l.inv.asked}
	}
	var marked []string
	for id, body := range l.items.all() {
		if got, _, err := on.item.Lookup(body); err == nil && bytes.HasPrefix(got, name) && (len(got) == len(name) || !on.removes) {
			marked = append(marked, id)
		}
	}
	for _, id := range marked {
		mark(id)
	}
	return removed || shown
}

// create notes an item that a call has created. item is nil if there is no draft of it.
func (l *Listing) create(id string, item []byte) {
	l.settle()
	l.former.remove(id)
	l.changes[id] = change{before: l.inv.asked, created: true}
	l.changesWhole(item)
	if _, listed := l.items.get(id); !listed && item != nil {
		l.own().put(id, item)
		l.inv.news = true
	}
}

// remove notes an item that a call has removed.
func (l *Listing) remove(id string) {
	l.settle()
	item, listed := l.items.get(id)
	if listed || l.changes[id].created { // an item that it never had may be another backend's
		l.leaves(id)
	}
	l.changes[id] = change{before: l.inv.asked}
	if listed {
		l.changesWhole(item)
		l.own().remove(id)
		delete(l.statuses, id)
		l.inv.news = true
	}
}

// emptied says that a call has removed all items with a value at a path, as the removal of a pod removes its containers.
// The answer to an earlier request may have one that no list has shown: its client was gone when it was created.
type emptied struct {
	at     *rewrite.Path
	before uint64 // the latest request before
}

// removedSince reports whether a call has removed an item, by the value of a field, since request seq.
func (l *Listing) removedSince(seq uint64, item []byte) bool {
	for value, e := range l.emptied {
		if got, _, err := e.at.Lookup(item); err == nil && string(got) == value && seq <= e.before {
			return true
		}
	}
	return false
}

// keepChanged gives an answer the items as calls have left them since its request.
func (l *Listing) keepChanged(answer *items) {
	if len(l.emptied) > 0 {
		for _, id := range slices.Clone(answer.ids) {
			if body, _ := answer.get(id); l.removedSince(l.answered, body) {
				answer.remove(id)
			}
		}
	}
	for id, c := range l.changes {
		theirs, listed := answer.get(id)
		switch ours, known := l.items.get(id); {
		case c.follows(theirs, listed):
		case known:
			answer.put(id, bytes.Clone(ours)) // it may be a part of the reply before, which it must not keep
		default:
			answer.remove(id)
		}
	}
}

// becomes notes what a call has made of an item, and reports whether that is known.
func (l *Listing) becomes(id string, b *becomes) (known bool) {
	if b == nil || b.state == nil {
		return b != nil
	}
	body, listed := l.items.get(id)
	if !listed {
		return true // a list without the item shows nothing of it
	}
	before, _, err := b.state.LookupVarint(body)
	after, known := b.after[before]
	if err != nil || !known {
		return false
	}
	var p rewrite.Patch
	p.SetVarint(b.state, after)
	changed, err := p.Apply(nil, body)
	if err != nil {
		return false
	}
	l.own().put(id, changed)
	was := slices.DeleteFunc(slices.Clone(l.changes[id].was), func(s uint64) bool { return s == after })
	for from, to := range b.after {
		if from != to && from != after && !slices.Contains(was, from) {
			was = append(was, from)
		}
	}
	l.changes[id] = change{l.inv.asked, l.changes[id].created, b.state, was}
	l.inv.news = true
	return true
}

// shownSince forgets the changes that the answer to request seq shows.
func (l *Listing) shownSince(seq uint64) {
	maps.DeleteFunc(l.changes, func(_ string, c change) bool { return c.before < seq })
	maps.DeleteFunc(l.emptied, func(_ string, e emptied) bool { return e.before < seq })
	maps.DeleteFunc(l.renamed, func(_ string, before uint64) bool { return before < seq })
}
