package inventory

import (
	"fmt"
	"iter"
	"maps"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/criproxy/criproxy/internal/base/wire"
)

// items are those of a list, in the order of the latest answer that differed from the one before. The zero value has none.
//
// place has each id once, and the body at that place is its item. Bodies are slices of whole replies, and several items
// values share them, so nobody may change their bytes. A Listing owns its items, except those that a View or a Saved has as well.
type items struct {
	ids    []string
	bodies [][]byte
	place  map[string]int // :: id → place in ids and bodies
	size   int            // bytes of all bodies
}

// get returns an item.
func (s *items) get(id string) (body []byte, ok bool) {
	i, ok := s.place[id]
	if !ok {
		return nil, false
	}
	return s.bodies[i], true
}

// put adds an item, or replaces the one that has its id.
func (s *items) put(id string, body []byte) {
	if i, ok := s.place[id]; ok {
		s.size += len(body) - len(s.bodies[i])
		s.bodies[i] = body
		return
	}
	if s.place == nil {
		s.place = map[string]int{}
	}
	s.place[id] = len(s.ids)
	s.ids, s.bodies = append(s.ids, id), append(s.bodies, body)
	s.size += len(body)
}

// remove removes an item, if it is there. All later ones move up.
func (s *items) remove(id string) {
	at, ok := s.place[id]
	if !ok {
		return
	}
	s.size -= len(s.bodies[at])
	s.ids, s.bodies = slices.Delete(s.ids, at, at+1), slices.Delete(s.bodies, at, at+1)
	delete(s.place, id)
	for i, id := range s.ids[at:] {
		s.place[id] = at + i
	}
}

// all yields them with their ids.
func (s *items) all() iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for i, id := range s.ids {
			if !yield(id, s.bodies[i]) {
				return
			}
		}
	}
}

// clone returns a copy that shares the bodies.
func (s *items) clone() *items {
	return &items{slices.Clone(s.ids), slices.Clone(s.bodies), maps.Clone(s.place), s.size}
}

// each calls do with every item of a reply and its id, which are slices of it, until do returns false.
func (l *ListPlan) each(reply []byte, do func(id, body []byte) bool) error {
	n := 0
	for f, err := range wire.Fields(reply) {
		if err != nil {
			return err
		}
		if f.Number != l.number || f.Type != protowire.BytesType {
			continue
		}
		id, _, err := l.id.Lookup(f.Bytes())
		if err != nil {
			return fmt.Errorf("item %d: %w", n, err)
		}
		if !do(id, f.Bytes()) {
			return nil
		}
		n++
	}
	return nil
}

// parse splits a reply into its items, some n, which are slices of it. Of two with the same id, the last one counts.
func (l *ListPlan) parse(reply []byte, n int) (*items, error) {
	s := &items{place: make(map[string]int, n)}
	err := l.each(reply, func(id, body []byte) bool {
		s.put(string(id), body)
		return true
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// unchanged reports whether a reply has the same items as l, in any order. Most replies do: lists are asked for every second. So
// it must not allocate: matched is scratch space that says which items of l the reply has had so far.
func (l *Listing) unchanged(reply []byte) bool {
	known := l.items
	l.matched = append(l.matched[:0], make([]bool, len(known.ids))...)
	n := 0
	err := l.plan.each(reply, func(id, body []byte) bool {
		i, ok := known.place[string(id)]
		if !ok || l.matched[i] || !same(l.plan.item, known.bodies[i], body) {
			n = -1
			return false
		}
		l.matched[i] = true
		n++
		return true
	})
	return err == nil && n == len(known.ids)
}

// maxTombstones is how many of the latest ids tombstones holds at least. It never holds twice as many.
const maxTombstones = 2_000

// tombstones has the ids of items that a list had and has no more. Their backend still counts as their owner: CRI wants
// stopping and removing an item that is gone to succeed, and only the backend that had the item can answer so. The next
// process gets them, too; otherwise it would ask another backend. The zero value has none.
type tombstones struct {
	now, old map[string]struct{} // :: id; old is dropped when now is full
}

// put adds an id. When now is full, it becomes old, and the ids that were old are forgotten.
func (f *tombstones) put(id string) {
	if f.now == nil || len(f.now) >= maxTombstones {
		f.now, f.old = map[string]struct{}{}, f.now
	}
	f.now[id] = struct{}{}
}

// has reports whether an item had this id and is gone.
func (f *tombstones) has(id string) bool {
	_, now := f.now[id]
	_, old := f.old[id]
	return now || old
}

// remove forgets an id: the backend lists it again.
func (f *tombstones) remove(id string) {
	delete(f.now, id)
	delete(f.old, id)
}

// all returns the ids, the older generation first. If another tombstones gets them in this order, it forgets the same first.
func (f *tombstones) all() []string {
	return slices.AppendSeq(slices.AppendSeq([]string{}, maps.Keys(f.old)), maps.Keys(f.now))
}
