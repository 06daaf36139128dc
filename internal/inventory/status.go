package inventory

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// An itemStatus is the status of one item, as the backend last gave it. It is fresh while its request is later than the
// item's latest change. A stale one stays, so that the next one can be compared with it.
type itemStatus struct {
	reply    []byte // empty: there is none
	asked    uint64 // the request that reply answers; zero: none
	answered uint64 // the latest request when the latest answer came
	changed  uint64 // the latest request before the item changed
}

// fresh reports whether the item is still as it was when its status was asked for.
func (k itemStatus) fresh() bool { return k.asked > k.changed }

// invalidateStatus notes that an item has changed, so that its status is stale. What changes in an optional list are numbers,
// which are no reason to write the file.
func (l *Listing) invalidateStatus(id string) {
	l.inv.news = l.inv.news || !l.plan.Spec.Optional
	if l.plan.AsksStatus() {
		k := l.statuses[id]
		k.changed = l.inv.asked
		l.statuses[id] = k
	}
}

// StatusOf returns the reply to a status call, if l has a fresh one. A client asks for a status when a list shows a change, and
// would take a stale status for the new one. If the status of an item is the item itself, the reply is the item; it is empty
// if the list is complete and has no item of that name.
func (l *Listing) StatusOf(name string) (reply []byte, ok bool) {
	l.inv.settle()
	if wrap := l.plan.Status.wrap; wrap != 0 {
		names := l.plan.equivalents(name)
		if slices.ContainsFunc(names, func(name string) bool { _, is := l.renamed[name]; return is }) {
			return nil, false // a call has given or taken this name since the list
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

// KeepStatus keeps the status of an item, which answers request asked. It ignores the status of an item that is not listed.
// It also ignores an empty reply, which says that there is no status, while l has a fresh one: a runtime whose state is
// damaged may answer NotFound to everything. A reply that would take inv above a limit in bytes makes the status unknown.
//
// Of two requests that were under way at once, either may have been answered first. If their replies differ, the item has
// changed, and nobody knows which reply is of before. Clients have seen both, so the status is stale.
func (l *Listing) KeepStatus(id string, asked uint64, reply []byte, limit int) {
	l.inv.settle()
	k := l.statuses[id]
	if _, listed := l.items.get(id); !listed || len(reply) == 0 && k.fresh() {
		return
	}
	md := l.plan.Status.Method.Output
	differs := k.reply == nil || !l.plan.stamps.same(md, k.reply, reply)
	l.inv.news = l.inv.news || differs || !k.fresh()
	switch {
	case differs && asked <= k.answered, len(reply) > len(k.reply) && l.inv.Bytes()-len(k.reply)+len(reply) > limit:
		k = itemStatus{changed: l.inv.asked}
	case asked > k.asked && (k.reply == nil || !same(md, k.reply, reply)):
		k.reply = append([]byte{}, reply...)
	}
	k.asked, k.answered = max(k.asked, asked), l.inv.asked
	l.statuses[id] = k
}

// BeginStatus is Begin for the status of an item.
func (inv *Inventory) BeginStatus() uint64 {
	inv.settle() // changes that earlier answers show came before this request
	return inv.Begin()
}

// WantStatus makes the status of an item due, although it may be known.
func (l *Listing) WantStatus(id string) { l.wanted[id] = true }

// DueStatuses returns the ids of the items whose status is due, and marks none as wanted any more. Due are those that are
// wanted and, if there is room for their statuses, those without a fresh one. If one is set and none is wanted, one item is
// due in any case, so that the caller can find out whether the backend is still slow to answer.
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

// invalidateWhole notes that an item has changed. That makes the status of the item of which it is a part stale.
func (l *Listing) invalidateWhole(item []byte) {
	if whole, id := l.wholeOf(item); whole != nil {
		whole.invalidateStatus(id)
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
