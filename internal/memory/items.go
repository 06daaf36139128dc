package memory

import (
	"fmt"
	"iter"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// items are the items of a list, in the order of the latest answer that differed from the one
// before. The zero value has none.
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

// remove removes an item, and reports whether it was there.
func (s *items) remove(id string) bool {
	at, ok := s.place[id]
	if !ok {
		return false
	}
	s.size -= len(s.bodies[at])
	s.ids, s.bodies = slices.Delete(s.ids, at, at+1), slices.Delete(s.bodies, at, at+1)
	delete(s.place, id)
	for i, id := range s.ids[at:] {
		s.place[id] = at + i
	}
	return true
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

// each calls do with every item of a reply and its id, until do returns false. Both are slices of
// the reply.
func (l *list) each(reply []byte, do func(id, body []byte) bool) error {
	for n := 0; len(reply) > 0; {
		num, typ, tag := protowire.ConsumeTag(reply)
		if tag < 0 {
			return protowire.ParseError(tag)
		}
		m := protowire.ConsumeFieldValue(num, typ, reply[tag:])
		if m < 0 {
			return protowire.ParseError(m)
		}
		if num == l.number && typ == protowire.BytesType {
			body, _ := protowire.ConsumeBytes(reply[tag : tag+m])
			id, _, err := l.id.Lookup(body)
			if err != nil {
				return fmt.Errorf("item %d: %w", n, err)
			}
			if !do(id, body) {
				return nil
			}
			n++
		}
		reply = reply[tag+m:]
	}
	return nil
}

// parse splits a reply into its items, which are slices of it. If two items have the same id, the
// last one counts.
func (l *list) parse(reply []byte) (*items, error) {
	s := &items{place: make(map[string]int, len(l.items.ids))}
	err := l.each(reply, func(id, body []byte) bool {
		s.put(string(id), body)
		return true
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// unchanged reports whether a reply has the remembered items, in any order. Most replies do,
// because lists are asked for every second.
func (l *list) unchanged(reply []byte) bool {
	known := &l.items
	l.seen = append(l.seen[:0], make([]bool, len(known.ids))...)
	n := 0
	err := l.each(reply, func(id, body []byte) bool {
		i, ok := known.place[string(id)]
		if !ok || l.seen[i] || !same(l.item, known.bodies[i], body) {
			n = -1
			return false
		}
		l.seen[i] = true
		n++
		return true
	})
	return err == nil && n == len(known.ids)
}
