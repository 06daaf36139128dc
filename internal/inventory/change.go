package inventory

import (
	"bytes"
	"maps"
	"slices"
	"time"

	"github.com/criproxy/criproxy/rewrite"
)

// A Note is a call to a backend that may have changed something there. A handover passes Notes on, so its fields are only added.
// The bytes belong to the call; whoever keeps them copies them.
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
// A backend may be slow to answer a request that was made before the change. Such an answer may show the item as it was, or
// as it is. So the item stays as the call left it, until an answer to a later request comes, or an answer that follows the
// change.

// A change is what calls have done to one item since the latest complete answer. The answer to an earlier request follows it
// if it shows the item as it is after the change:
//
//	the call          created  becomes  an answer follows if
//	created it        yes      nil      it lists the item
//	changed it        either   set      it lists the item in a state that the calls leave as it is; or, if not created, does not list it
//	removed it        no       nil      it does not list the item
//
// What was created stays so until it is removed, and what is removed stays so.
type change struct {
	before  uint64 // the latest request before the latest call; an answer to a later one shows the change
	created bool
	becomes *becomes // what the calls make of the item, one after the other; nil: none has changed its state
}

// follows reports whether an answer in which the item is listed so, or not listed, follows the change.
func (c change) follows(item []byte, listed bool) bool {
	switch {
	case !listed:
		return !c.created
	case c.becomes == nil:
		return c.created
	}
	before, after, known := c.becomes.of(item)
	return !known || before == after
}

// Note applies to the lists what a call has changed, as p says, and returns these lists. A call that failed may have changed
// something, too. If the items cannot show what the call did, the list is invalid until the backend's next answer. now is
// the time at which the call ended.
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

// note does the work of Note for one list. shown reports that the items now show all that the call has changed.
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

// change applies what a call did to the items that its request names. If the call succeeded, their statuses are stale. If it
// failed, it may have changed them: then their statuses are due. shown reports that the items now show the whole change.
func (l *Listing) change(on effect, request []byte, changed bool) (shown bool) {
	name, _, err := on.request.Lookup(request)
	if err != nil || len(name) == 0 {
		return false
	}
	l.settle()
	switch {
	case !on.list.AsksStatus():
		return l.changeNamed(on, string(name), changed)
	case on.item == nil:
		return l.changeOne(on, string(name), changed)
	default:
		return l.changeWithin(on, name, changed)
	}
}

// changeNamed changes an item that may have several names, such as an image. Only a removal by id has a certain result: removing
// another name leaves the item with its other names, or removes it if that was the only one, and the backend must say which.
func (l *Listing) changeNamed(on effect, name string, changed bool) (shown bool) {
	for _, same := range on.list.equivalents(name) {
		l.renamed[same] = l.inv.asked
	}
	if _, listed := l.items.get(name); !listed || !changed || !on.removes {
		return false
	}
	l.remove(name)
	return true
}

// changeOne changes the item that has an id, or whose id is the only one with that beginning. Only an exact id removes an item,
// perhaps one that only a late answer lists.
func (l *Listing) changeOne(on effect, name string, changed bool) (shown bool) {
	shown, removed := changed && on.becomes != nil, changed && on.removes
	id, n := l.items.resolve(name)
	if removed {
		l.remove(name)
	}
	switch {
	case n == 1 && !(removed && id == name):
		return l.mark(id, on, changed)
	case n == 0 && shown:
		l.becomes(name, on.becomes) // an answer to an earlier request may list it
	}
	return removed || shown
}

// changeWithin changes all items in another one, such as the containers of a pod, also those that only a late answer lists.
func (l *Listing) changeWithin(on effect, name []byte, changed bool) (shown bool) {
	shown, removed := changed && on.becomes != nil, changed && on.removes
	if removed || shown {
		l.sweeps[string(name)] = l.sweeps[string(name)].then(sweep{on.item, l.inv.asked, on.becomes, removed})
	}
	var within []string
	for id, body := range l.items.all() {
		if got, _, err := on.item.Lookup(body); err == nil && bytes.HasPrefix(got, name) && (len(got) == len(name) || !on.removes) {
			within = append(within, id)
		}
	}
	for _, id := range within {
		if removed {
			l.remove(id)
		} else {
			shown = l.mark(id, on, changed) && shown
		}
	}
	return removed || shown
}

// mark changes an item that stays. shown reports that it shows the change: it has a state of which the profile says what the call
// makes of it.
func (l *Listing) mark(id string, on effect, changed bool) (shown bool) {
	item, _ := l.items.get(id)
	if changed {
		l.invalidateWhole(item)
		shown = l.becomes(id, on.becomes)
		l.invalidateStatus(id) // the file must not hold the old status either
		return shown
	}
	l.wanted[id] = true
	if whole, id := l.wholeOf(item); whole != nil {
		whole.wanted[id] = true
	}
	return false
}

// create adds an item that a call has created. item is nil if there is no draft of it.
func (l *Listing) create(id string, item []byte) {
	l.settle()
	l.tombstones.remove(id)
	l.changes[id] = change{before: l.inv.asked, created: true}
	l.invalidateWhole(item)
	if _, listed := l.items.get(id); !listed && item != nil {
		l.own().put(id, item)
		l.inv.news = true
	}
}

// remove removes an item that a call has removed. An answer to an earlier request does not bring it back.
func (l *Listing) remove(id string) {
	l.settle()
	item, listed := l.items.get(id)
	if listed || l.changes[id].created { // any other item may be another backend's
		l.bury(id)
	}
	l.changes[id] = change{before: l.inv.asked}
	if listed {
		l.invalidateWhole(item)
		l.own().remove(id)
		delete(l.statuses, id)
		l.inv.news = true
	}
}

// A sweep is what calls have done to all items with a value at a path, as the removal of a pod removes its containers, and its
// stop ends them. The answer to an earlier request may have such an item that l never had: its client was gone when it was
// created, or there was no answer yet.
type sweep struct {
	at      *rewrite.Path
	before  uint64   // the latest request before the latest call
	becomes *becomes // what the calls make of the items
	removed bool
}

// then returns what s and then another call have done. s may be zero.
func (s sweep) then(next sweep) sweep {
	next.becomes, next.removed = s.becomes.then(next.becomes), s.removed || next.removed
	return next
}

// since returns what calls have made of an item in the answer to request seq since then, or nil if they have removed it. Where
// the answer does not follow a change, an item that l has stays as it is.
func (l *Listing) since(seq uint64, id string, item []byte) []byte {
	ours, known := l.items.get(id)
	if c, changed := l.changes[id]; changed && seq <= c.before && !c.follows(item, true) {
		if known || c.becomes == nil {
			return bytes.Clone(ours) // a copy, so that the whole earlier reply can be freed
		}
		item, _ = c.becomes.apply(item)
	}
	for value, s := range l.sweeps {
		got, _, err := s.at.Lookup(item)
		switch {
		case err != nil || string(got) != value || seq > s.before:
		case s.removed:
			return nil
		case !known:
			item, _ = s.becomes.apply(item)
		}
	}
	return item
}

// keepChanged applies to an answer what calls have changed since its request, so that it shows nothing that a client knows to
// be over. Where the answer follows a change, it counts as it is.
func (l *Listing) keepChanged(answer *items) {
	keep := func(id string, theirs []byte) {
		if item := l.since(l.answered, id, theirs); item != nil {
			answer.put(id, item)
		} else {
			answer.remove(id)
		}
	}
	if len(l.sweeps) > 0 {
		for _, id := range slices.Clone(answer.ids) {
			theirs, _ := answer.get(id)
			keep(id, theirs)
		}
	}
	for id, c := range l.changes {
		theirs, listed := answer.get(id)
		ours, known := l.items.get(id)
		switch {
		case listed:
			keep(id, theirs)
		case c.created && known:
			answer.put(id, bytes.Clone(ours))
		}
	}
}

// becomes gives an item the state that a call has given it, also if only a late answer lists it. known reports whether b says
// what became of it.
func (l *Listing) becomes(id string, b *becomes) (known bool) {
	if b == nil || b.state == nil {
		return b != nil
	}
	c, changed := l.changes[id]
	body, listed := l.items.get(id)
	if listed {
		if body, known = b.apply(body); !known {
			return false
		}
		l.own().put(id, body)
		l.inv.news = true
	} else if changed && !c.created && c.becomes == nil {
		return true // it is removed
	}
	l.changes[id] = change{l.inv.asked, c.created, c.becomes.then(b)}
	return true
}

// shownSince forgets the changes before request seq: its answer shows them.
func (l *Listing) shownSince(seq uint64) {
	maps.DeleteFunc(l.changes, func(_ string, c change) bool { return c.before < seq })
	maps.DeleteFunc(l.sweeps, func(_ string, s sweep) bool { return s.before < seq })
	maps.DeleteFunc(l.renamed, func(_ string, before uint64) bool { return before < seq })
	maps.DeleteFunc(l.parts, func(_ string, part uint64) bool { return part < seq })
}
