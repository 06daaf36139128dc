package inventory

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// known is the status of an item, as the backend last gave it.
type known struct {
	reply   []byte // empty: there is none
	asked   uint64 // the request that it answers; zero: none
	changed uint64 // the latest request before the item changed
}

// fresh reports whether the item is still as it was when its status was asked for.
func (k known) fresh() bool { return k.asked > k.changed }

// outdate notes that an item has changed, and that its status is older. What changes in an optional list are its numbers:
// they go into the file together with something else.
func (l *Listing) outdate(id string) {
	l.inv.news = l.inv.news || !l.plan.Spec.Optional
	if l.plan.AsksStatus() {
		k := l.statuses[id]
		k.changed = l.inv.asked
		l.statuses[id] = k
	}
}

// StatusOf returns the reply to a status call, if l has it. If the status of an item is the item itself, and the item is not
// listed, then there is no such item: the reply is empty. A status from before the item changed does not count, because a
// client asks when a list shows a change, and would take the old status for the new one.
func (l *Listing) StatusOf(name string) (reply []byte, ok bool) {
	l.inv.settle()
	if wrap := l.plan.Status.wrap; wrap != 0 {
		names := l.plan.equivalents(name)
		if slices.ContainsFunc(names, func(name string) bool { _, is := l.renamed[name]; return is }) {
			return nil, false // it was pulled or removed after the list
		}
		item, ok := l.plan.byName(l.items, names)
		if !ok {
			return nil, l.Complete
		}
		return protowire.AppendBytes(protowire.AppendTag(nil, wrap, protowire.BytesType), item), true
	}
	id, n := l.items.resolve(name)
	k := l.statuses[id]
	return k.reply, n == 1 && len(k.reply) > 0 && k.fresh()
}

// KeepStatus remembers the status of an item, which request asked has asked for, unless the item is not listed, or there is
// a later status, or one where now there is none: a runtime whose state is damaged may answer NotFound to everything.
func (l *Listing) KeepStatus(id string, asked uint64, reply []byte) {
	l.inv.settle()
	k := l.statuses[id]
	if _, listed := l.items.get(id); !listed || asked <= k.asked || len(reply) == 0 && k.fresh() {
		return
	}
	l.inv.news = l.inv.news || !k.fresh()
	k.asked = asked
	if md := l.plan.Status.Method.Output; k.reply == nil || !same(md, k.reply, reply) {
		l.inv.news = l.inv.news || k.reply == nil || !l.plan.stamps.same(md, k.reply, reply)
		k.reply = append([]byte{}, reply...)
	}
	l.statuses[id] = k
}

// BeginStatus is Begin for the status of an item.
func (inv *Inventory) BeginStatus() uint64 {
	inv.settle() // what earlier answers show has changed before
	return inv.Begin()
}

// WantStatus makes the status of an item due, although it may be known.
func (l *Listing) WantStatus(id string) { l.wanted[id] = true }

// DueStatuses returns the ids of the items whose status is due: those that are wanted, and if there is room for their
// statuses, those that are new or have changed. With one it is at least one, if there are items.
func (l *Listing) DueStatuses(room, one bool) (ids []string) {
	l.inv.settle()
	if one && len(l.wanted) == 0 {
		for id := range l.items.place { // any item will do
			l.wanted[id] = true
			break
		}
	}
	ids = slices.AppendSeq(ids, maps.Keys(l.wanted))
	if room && l.plan.AsksStatus() {
		for id := range l.items.place { // in random order: a status that never comes must not always be first
			if !l.statuses[id].fresh() && !l.wanted[id] {
				ids = append(ids, id)
			}
		}
	}
	clear(l.wanted)
	return ids
}

// changesWhole notes that an item has changed. The status of its whole is out of date then.
func (l *Listing) changesWhole(item []byte) {
	if whole, id := l.wholeOf(item); whole != nil {
		whole.outdate(id)
	}
}

// wholeOf returns the listed item of which an item is a part. whole is nil if there is none.
func (l *Listing) wholeOf(item []byte) (whole *Listing, id string) {
	if l.plan.whole == nil {
		return nil, ""
	}
	whole = l.inv.List(l.plan.whole)
	whole.settle()
	named, _, err := l.plan.wholeID.Lookup(item)
	if _, listed := whole.items.get(string(named)); !listed || err != nil {
		return nil, ""
	}
	return whole, string(named)
}
