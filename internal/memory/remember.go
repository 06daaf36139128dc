package memory

import (
	"bytes"
	"maps"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/criproxy/criproxy/codec"
)

// memory is the remembered state of one list. Memory.mu guards it.
type memory struct {
	by       *list  // reads the answers
	raw      []byte // an answer that an earlier process wrote and that no list has read yet; nil: none
	complete bool   // items are those of a complete answer
	items    items
	seen     []bool // scratch of unchanged
	news     bool   // items or statuses differ from those in the file, other than in the numbers of an optional list

	// A complete answer that settle has not read yet, because no call has needed that.
	pending *codec.Frame

	// Requests are numbered, so that a late answer does not replace a newer one.
	asked       uint64    // the latest request
	answered    uint64    // the request whose answer is remembered
	shown       uint64    // the latest request with a filter whose answer showed something new
	changed     uint64    // the latest request that was made before something changed, or may have
	invalidated uint64    // the same of a change that a client knows of and that memory cannot show itself
	staleSince  time.Time // since when the answer may lack such a change; meaningless if it does not
	at          time.Time // when the answered request was made

	changes map[string]change  // :: id → its latest change by a call, until an answer to a later request
	emptied map[string]emptied // :: value of a field by which a call has removed items, until then
	former  former

	statuses map[string]known  // :: id → its status
	renamed  map[string]uint64 // :: name that a call may have given or taken → the latest request before
}

// known is what memory knows of the status of an item.
type known struct {
	reply   []byte // empty: there is none
	asked   uint64 // the request that it answers; zero: none
	changed uint64 // the latest request before the item changed
}

// fresh reports whether the item is still as it was when its status was asked for.
func (k known) fresh() bool { return k.asked > k.changed }

// outdate notes that an item has changed, and that its status is older. What changes in an optional list are its numbers:
// they go into the file together with something else.
func (l *list) outdate(id string) {
	l.news = l.news || !l.spec.Optional
	if l.asksStatus() {
		k := l.statuses[id]
		k.changed = l.asked
		l.statuses[id] = k
	}
}

// asksStatus reports whether the status of an item says more than the item itself.
func (l *list) asksStatus() bool { return l.status != nil && l.status.wrap == 0 }

// begin numbers a request for all items.
func (l *memory) begin() uint64 {
	l.asked++
	return l.asked
}

// noteChange notes that something may have changed. Answers to earlier requests may not show it.
func (l *memory) noteChange() {
	l.changed = l.begin() // a number of its own, so that changes can be told apart
}

// invalidate notes a change that a client knows of and that memory cannot show itself. Until an answer to a
// later request comes, lists wait.
func (l *memory) invalidate() {
	if l.invalidated < l.answered {
		l.staleSince = time.Now()
	}
	l.noteChange()
	l.invalidated = l.changed
}

// changedSince reports whether something has changed since a request was made.
func (l *memory) changedSince(seq uint64) bool { return l.changed >= seq }

// stale reports whether the remembered answer may be older than a change.
func (l *memory) stale() bool { return l.changedSince(l.answered) }

// observe remembers the complete answer to request seq, unless a later request has been answered.
// It keeps a reference to the answer, not a copy.
func (l *list) observe(seq uint64, at time.Time, answer *codec.Frame) {
	if seq < l.answered || seq < l.shown {
		return
	}
	if l.pending != nil {
		l.pending.Free()
	}
	l.pending, l.answered, l.at, l.complete = answer.Ref(), seq, at, true
	l.staleSince = at // at the earliest
	l.shownSince(seq)
}

// settle reads a pending answer. If that is malformed, the items stay as they were; if there were
// none, the list no longer counts as complete.
func (l *list) settle() {
	if l.pending == nil {
		return
	}
	answer := l.pending
	l.pending = nil
	defer answer.Free()
	if l.unchanged(answer.Bytes()) {
		return
	}
	items, err := l.parse(bytes.Clone(answer.Bytes()))
	if err != nil {
		l.complete = len(l.items.ids) > 0
		return
	}
	l.keepChanged(items)
	l.news = l.news || len(items.ids) != len(l.items.ids)
	for id, body := range items.all() {
		old, ok := l.items.get(id)
		if !ok {
			l.former.remove(id)
			l.news = true
		}
		if !ok || !l.stamps.same(l.item, old, body) {
			l.outdate(id)
			l.changesWhole(body)
		}
	}
	for id, old := range l.items.all() {
		if _, ok := items.get(id); !ok {
			l.leaves(id)
			l.changesWhole(old)
		}
	}
	l.items = *items
	gone := func(id string) bool { _, ok := l.items.get(id); return !ok }
	maps.DeleteFunc(l.statuses, func(id string, _ known) bool { return gone(id) })
}

// merge remembers the items in the answer to a request with a filter. The answer need not be
// complete, but its items are true. lacks reports whether the answer lacks items that match the
// request in memory, and that no client has created or changed since the request.
func (l *list) merge(seq uint64, request, answer []byte) (lacks bool) {
	for _, f := range l.filters { // a filter may look into another list
		if f.of != nil {
			f.of.settle()
		}
	}
	l.settle()
	items, err := l.parse(answer)
	if err != nil {
		return false
	}
	if matches, err := l.matcher(request); err == nil {
		for id, item := range l.items.all() {
			c, changed := l.changes[id]
			if _, ok := items.get(id); !ok && (!changed || seq > c.before) && matches(id, item) {
				lacks = true
				break
			}
		}
	}
	for id, item := range items.all() {
		old, ok := l.items.get(id)
		if ok && same(l.item, old, item) {
			continue
		}
		if c, changed := l.changes[id]; changed && seq <= c.before && !c.follows(item, true) || l.removedSince(seq, item) {
			continue // the answer is to a request from before the change
		}
		l.items.put(id, bytes.Clone(item))
		l.news = l.news || !ok
		l.shown = max(l.shown, seq)
		if ok && l.stamps.same(l.item, old, item) {
			continue
		}
		l.changesWhole(item)
		l.outdate(id)
		l.noteChange() // the rest may have changed as well
	}
	return lacks
}

// everything matches all items.
func everything(string, []byte) bool { return true }

// reply returns all items that match, as the reply to a list.
func (l *list) reply(matches func(id string, item []byte) bool) []byte {
	number := protowire.Number(l.number)
	var bodies [][]byte
	size := 0 // computed first, so that a long reply is allocated once
	for id, item := range l.items.all() {
		if matches(id, item) {
			bodies = append(bodies, item)
			size += protowire.SizeTag(number) + protowire.SizeBytes(len(item))
		}
	}
	b := make([]byte, 0, size)
	for _, item := range bodies {
		b = protowire.AppendTag(b, number, protowire.BytesType)
		b = protowire.AppendBytes(b, item)
	}
	return b
}

// has reports whether an item has exactly this id.
func (l *list) has(id string) bool {
	l.settle()
	_, listed := l.items.get(id)
	return listed || l.changes[id].created
}

// holds returns how many ids begin with name, and 1 if one of them is exactly name.
func (l *list) holds(name []byte) int {
	if l.has(string(name)) {
		return 1
	}
	n := 0
	for _, id := range l.items.ids {
		if len(id) > len(name) && id[:len(name)] == string(name) {
			n++
		}
	}
	for id, c := range l.changes {
		if _, listed := l.items.get(id); c.created && !listed && len(id) > len(name) && id[:len(name)] == string(name) {
			n++
		}
	}
	return n
}

// resolve returns the id that is name, or else the only id that begins with name.
func (l *list) resolve(name string) (string, bool) {
	if _, ok := l.items.get(name); ok {
		return name, true
	}
	found, n := "", 0
	for _, id := range l.items.ids {
		if name != "" && len(id) > len(name) && id[:len(name)] == name {
			found, n = id, n+1
		}
	}
	return found, n == 1
}

// bytes is the size of the items and statuses.
func (l *memory) bytes() int {
	n := l.items.size
	for _, s := range l.statuses {
		n += len(s.reply)
	}
	return n
}
