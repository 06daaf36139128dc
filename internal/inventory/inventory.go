package inventory

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"
)

// An Inventory has all lists of one backend, as its answers and the calls since then left them. It has no lock: its owner calls
// one method of it and of its Listings at a time, and gives out a [View] to all others.
//
// Requests and changes share one count, asked, over all lists: whether an answer shows a change is a comparison of two
// numbers, whichever lists they are about.
type Inventory struct {
	lists   map[string]*Listing // :: key of a list → its items and their statuses
	replies map[string][]byte   // :: short name of a method → its latest reply to an empty request

	asked uint64 // the number of the latest request or change, of any list
	news  bool   // see TakeNews
	view  *View  // the latest one; nil: something has changed since, or there was none yet
}

// New returns an Inventory of which nothing is known.
func New() *Inventory {
	return &Inventory{lists: map[string]*Listing{}, replies: map[string][]byte{}, asked: 1}
}

// Use makes the methods read lists by p from now on, also those that an earlier plan or process has filled. A list that p
// reads in another way is written as a reply by its old plan, and read again by p. What p cannot read is unknown again; the
// error says why. Lists that only earlier plans have stay as they are.
func (inv *Inventory) Use(p *Plan) error {
	var errs []error
	inv.changed()
	for _, plan := range p.Lists {
		l := inv.List(plan)
		if by := l.plan; by != nil && (by.Spec.ID != plan.Spec.ID || by.number != plan.number) { // the profile has changed
			l.settle()
			l.raw = by.reply(l.items, nil)
		}
		l.plan = plan
		if l.raw == nil {
			continue
		}
		items, err := plan.parse(l.raw, 0)
		if err == nil && len(items.ids) == 0 && len(l.raw) > 0 {
			err = errors.New("it is not empty, but no item can be read from it")
		}
		if l.raw = nil; err != nil {
			l.Complete = false
			errs = append(errs, fmt.Errorf("%s: %w", plan.key, err))
			continue
		}
		l.become(items)
	}
	return errors.Join(errs...)
}

// listing returns the Listing with a key, which it makes if there is none.
func (inv *Inventory) listing(key string) *Listing {
	l := inv.lists[key]
	if l == nil {
		l = &Listing{
			inv: inv, items: &items{}, answered: 1, statuses: map[string]itemStatus{}, wanted: map[string]bool{},
			changes: map[string]change{}, sweeps: map[string]sweep{}, renamed: map[string]uint64{}, parts: map[string]uint64{},
		}
		inv.lists[key] = l
	}
	return l
}

// List returns what inv knows of a list.
func (inv *Inventory) List(p *ListPlan) *Listing { return inv.listing(p.key) }

// changed drops the latest View: the next one differs.
func (inv *Inventory) changed() { inv.view = nil }

// Begin numbers a request that is made now.
func (inv *Inventory) Begin() uint64 {
	inv.asked++
	return inv.asked
}

// Asked returns the number of the latest request or change.
func (inv *Inventory) Asked() uint64 { return inv.asked }

// Reply returns the latest reply to an empty request of a method whose replies are kept. The bytes must not be changed.
func (inv *Inventory) Reply(method string) (reply []byte, known bool) {
	reply, known = inv.replies[method]
	return reply, known
}

// KeepReply keeps a reply to an empty request.
func (inv *Inventory) KeepReply(p *ReplyPlan, reply []byte) {
	before, known := inv.replies[p.Spec.Method]
	if known && slices.Equal(before, reply) {
		return
	}
	inv.news = inv.news || !known || !p.stamps.same(p.Method.Output, before, reply)
	inv.replies[p.Spec.Method] = slices.Clone(reply)
}

// Bytes is the size of all items, statuses and replies.
func (inv *Inventory) Bytes() int {
	n := 0
	for _, l := range inv.lists {
		n += len(l.raw) + l.items.size
		for _, s := range l.statuses {
			n += len(s.reply)
		}
	}
	for _, reply := range inv.replies {
		n += len(reply)
	}
	return n
}

// Bound keeps inv within a limit in bytes. Of the lists of p, it first drops the statuses, which the owner can ask for again
// when there is room. If that is not enough it drops whole lists, the last one first. Their items are unknown from then on,
// and no answer to an earlier request makes them known.
func (inv *Inventory) Bound(p *Plan, limit int) {
	if inv.Bytes() <= limit {
		return
	}
	for _, one := range p.Lists {
		statuses := inv.List(one).statuses
		for id, k := range statuses {
			statuses[id] = itemStatus{changed: max(k.answered, k.changed)}
		}
	}
	for _, one := range slices.Backward(p.Lists) {
		if inv.Bytes() <= limit {
			return
		}
		l := inv.List(one)
		l.settle()
		clear(l.changes)
		clear(l.sweeps)
		l.become(&items{})
		l.Complete, l.shown, inv.news = false, inv.asked+1, true // earlier requests may lack changes
	}
}

// Saved is a list for the next process, in a form that does not depend on the plan of this one: as the reply of the backend.
type Saved struct {
	Reply    []byte // for Restore; nil from Save if a plan has read it: Parts has it in any case
	Statuses map[string][]byte
	Fresh    bool     // the reply lacks no change by a client
	Former   []string // ids of items that are gone, the first to forget first

	plan  *ListPlan
	items *items // of which Parts makes the reply; nil: Reply is there
}

// Parts yields the reply in parts of size bytes or somewhat more, each of which is valid until the next: nobody needs the
// memory for all of a long list.
func (s *Saved) Parts(size int) iter.Seq[[]byte] {
	if s.items == nil {
		return slices.Chunk(s.Reply, size)
	}
	return func(yield func([]byte) bool) {
		var part []byte
		for _, item := range s.items.bodies {
			if part = s.plan.appendItem(part, item); len(part) < size {
				continue
			}
			if !yield(part) {
				return
			}
			part = part[:0]
		}
		if len(part) > 0 {
			yield(part)
		}
	}
}

// settle reads all pending answers.
func (inv *Inventory) settle() {
	for _, l := range inv.lists {
		l.settle()
	}
}

// TakeNews reports whether what Save returns has changed since the last TakeNews, other than in numbers of an optional list.
func (inv *Inventory) TakeNews() bool {
	inv.settle()
	news := inv.news
	inv.news = false
	return news
}

// Save returns the lists that are known, by their keys, and the replies that are kept, by their methods.
func (inv *Inventory) Save() (lists map[string]Saved, replies map[string][]byte) {
	lists = map[string]Saved{}
	inv.settle()
	for key, l := range inv.lists {
		if !l.Complete {
			continue
		}
		s := Saved{Reply: l.raw, Statuses: make(map[string][]byte, len(l.statuses)), Fresh: !l.Stale(), Former: l.tombstones.all()}
		if l.plan != nil {
			s.plan, s.items, l.shared = l.plan, l.items, true
		}
		for id, k := range l.statuses {
			if k.fresh() {
				s.Statuses[id] = k.reply
			}
		}
		lists[key] = s
	}
	return lists, maps.Clone(inv.replies)
}

// Restore puts what an earlier process has saved at the time at into an Inventory of which nothing is known. It keeps the reply
// as it is, until Use brings a plan that can read it. The caller must see to lists that are not Fresh: they may be older
// than what clients know.
func (inv *Inventory) Restore(key string, s Saved, at time.Time) *Listing {
	l := inv.listing(key)
	l.raw, l.Complete, l.At = s.Reply, true, at
	for _, id := range s.Former {
		l.tombstones.put(id)
	}
	for id, reply := range s.Statuses {
		l.statuses[id] = itemStatus{reply: reply, asked: inv.asked, answered: inv.asked}
	}
	return l
}

// RestoreReplies is Restore for replies.
func (inv *Inventory) RestoreReplies(replies map[string][]byte) { maps.Copy(inv.replies, replies) }

// Empty reports whether no list is known.
func (inv *Inventory) Empty() bool { return len(inv.lists) == 0 }
