package inventory

import (
	"bytes"
	"time"

	"github.com/criproxy/criproxy/codec"
)

// A Listing is what an Inventory knows of one list: the items of the latest answer, with what calls have changed since the
// request for it. It belongs to its Inventory, whose owner may read the exported fields.
//
// Time is the count of requests and changes that [Inventory.Begin] makes. Four of these numbers decide what an answer is
// worth:
//
//	answered     the request that the items answer
//	shown        the latest request with a filter whose answer added something to them
//	changed      the latest change that they may lack
//	Invalidated  the latest change that a client knows of, and that only an answer to a later request shows
//
// The items are stale while answered is not above changed. No number ever falls, so a late answer cannot undo a later one.
//
// A complete answer stays in pending until somebody needs the items, because most answers are the same as the one before. So
// each method that reads items calls settle first.
type Listing struct {
	Complete    bool      // it has all items; an answer that turns out to be malformed when it is read counts until then
	At          time.Time // when the request was made whose answer it has
	Invalidated uint64    // see above; zero: none
	StaleSince  time.Time // since when the items lack a change that a client knows of; meaningless if they lack none

	inv  *Inventory
	plan *ListPlan // reads the answers; nil: no plan has the list, and raw is all that there is

	raw     []byte // an answer that an earlier process had and that no plan has read yet; nil: none
	items   *items // to change them, call own; to replace them, become
	shared  bool   // a View or a Saved has items, too
	matched []bool // scratch of unchanged

	pending *codec.Frame // a complete answer that settle has not read yet, because nobody has needed that

	answered, shown, changed uint64 // see above

	changes    map[string]change // :: id → its latest change by a call, until an answer to a later request
	sweeps     map[string]sweep  // :: value of a field by which calls have removed or changed items, until then
	tombstones tombstones

	statuses map[string]itemStatus // :: id → its status
	wanted   map[string]bool       // ids whose status is due although it may be known
	renamed  map[string]uint64     // :: name that a call may have given or taken → the latest request before
	parts    map[string]uint64     // :: id → the latest request with a filter whose answer has it, until then
}

// noteChange notes that something may have changed. Answers to earlier requests may lack it. Each change has a number of its
// own, so that Shows can answer for one of them.
func (l *Listing) noteChange() { l.changed = l.inv.Begin() }

// Invalidate notes a change that a client knows of and that the items cannot show before the answer to a later request.
func (l *Listing) Invalidate(now time.Time) {
	if l.Invalidated < l.answered {
		l.StaleSince = now
	}
	l.noteChange()
	l.Invalidated = l.changed
}

// ChangedSince reports whether something has changed since a request was made.
func (l *Listing) ChangedSince(seq uint64) bool { return l.changed >= seq }

// Stale reports whether the items may lack a change.
func (l *Listing) Stale() bool { return l.ChangedSince(l.answered) }

// Shows reports whether the items show the effects of a change, because they were asked for after it.
func (l *Listing) Shows(change uint64) bool { return change < l.answered }

// Observe keeps a reference to the complete answer to request seq, unless a later request has been answered.
func (l *Listing) Observe(seq uint64, at time.Time, answer *codec.Frame) {
	if seq < l.answered || seq < l.shown {
		return
	}
	if l.pending != nil {
		l.pending.Free()
	}
	if !l.Complete {
		l.Complete = true
		l.inv.changed()
	}
	l.pending, l.answered, l.At = answer.Ref(), seq, at
	l.StaleSince = at // at the earliest
	l.shownSince(seq)
}

// settle reads the pending answer. It leaves the items as they are if the answer has the same. Otherwise it finds out which
// items are new, changed or gone: their statuses are stale then, and ids that are gone become tombstones. A malformed answer
// changes nothing, except that a list without items is not complete then.
func (l *Listing) settle() {
	if l.pending == nil {
		return
	}
	answer := l.pending
	l.pending = nil
	defer answer.Free()
	if l.unchanged(answer.Bytes()) {
		return
	}
	items, err := l.plan.parse(bytes.Clone(answer.Bytes()), len(l.items.ids))
	if err != nil {
		l.Complete = len(l.items.ids) > 0
		l.inv.changed()
		return
	}
	l.keepChanged(items)
	l.inv.news = l.inv.news || len(items.ids) != len(l.items.ids)
	for id, body := range items.all() {
		old, ok := l.items.get(id)
		if !ok {
			l.tombstones.remove(id)
			l.inv.news = true
		}
		if !ok || !l.plan.stamps.same(l.plan.item, old, body) {
			l.invalidateStatus(id)
			l.invalidateWhole(body)
		}
	}
	for id, old := range l.items.all() {
		if _, ok := items.get(id); !ok {
			l.bury(id)
			l.invalidateWhole(old)
			delete(l.statuses, id)
		}
	}
	l.become(items)
}

// Merge adds the items in the answer to a request with a filter. It removes none, because such an answer shows only some.
//
// lacks reports that the answer misses an item of l which matches the request, and which no client has created or changed
// since the request: something has happened at the backend that l does not show. The answer to a request from before the
// one that the items answer counts for nothing, and of an item that the answer to a later request had, too.
func (l *Listing) Merge(seq uint64, request, answer []byte) (lacks bool) {
	if seq <= l.answered {
		return false
	}
	of := func(p *ListPlan) *items { // a filter may be about the items of another list
		other := l.inv.List(p)
		other.settle()
		return other.items
	}
	l.settle()
	items, err := l.plan.parse(answer, 0)
	if err != nil {
		return false
	}
	if matches, err := l.plan.matcher(request, of); err == nil {
		for id, item := range l.items.all() {
			c, changed := l.changes[id]
			if _, ok := items.get(id); !ok && (!changed || seq > c.before) && seq > l.parts[id] && matches(id, item) {
				lacks = true
				break
			}
		}
	}
	for id, item := range items.all() {
		if seq < l.parts[id] {
			continue
		}
		l.parts[id] = seq
		old, ok := l.items.get(id)
		item = l.since(seq, id, item)
		if item == nil || ok && same(l.plan.item, old, item) {
			continue
		}
		l.own().put(id, bytes.Clone(item))
		l.inv.news = l.inv.news || !ok
		l.shown = max(l.shown, seq)
		if ok && l.plan.stamps.same(l.plan.item, old, item) {
			continue
		}
		l.invalidateWhole(item)
		l.invalidateStatus(id)
		l.noteChange() // the rest may have changed as well
	}
	return lacks
}

// bury notes that an item has left l.
func (l *Listing) bury(id string) {
	if l.plan.Spec.Kind != "" { // otherwise nobody asks for its owner
		l.tombstones.put(id)
	}
}

// own returns the items, for a change of them. Whoever else has them keeps those, and l gets a copy.
func (l *Listing) own() *items {
	if l.shared {
		l.items, l.shared = l.items.clone(), false
	}
	l.inv.changed()
	return l.items
}

// become replaces the items. Whoever else has them keeps those.
func (l *Listing) become(s *items) {
	l.items, l.shared = s, false
	l.inv.changed()
}
