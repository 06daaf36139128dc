package inventory

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// A View is all lists of an Inventory at one instant. It does not change, and is safe for concurrent use, even while its
// Inventory changes: a Listing copies the items that a View has before it changes them.
type View struct {
	lists map[string]viewed // :: key
}

// viewed is a list in a View. The items are those that the Listing had then: once a View has them, the Listing makes others instead
// of changing them.
type viewed struct {
	items    *items
	complete bool
}

// View returns the lists as they are now. It is the same as before if nothing has changed.
func (inv *Inventory) View() *View {
	inv.settle()
	if inv.view != nil {
		return inv.view
	}
	inv.view = &View{make(map[string]viewed, len(inv.lists))}
	for key, l := range inv.lists {
		l.shared = true
		inv.view.lists[key] = viewed{l.items, l.Complete}
	}
	return inv.view
}

// Complete reports whether v has all items of a list.
func (v *View) Complete(l *ListPlan) bool { return v.lists[l.key].complete }

// Answer returns the items of a list that match a request, as the reply to it. v need not have all of them.
func (v *View) Answer(l *ListPlan, request []byte) ([]byte, error) {
	matches, err := l.matcher(request, v.items)
	if err != nil {
		return nil, err
	}
	return l.reply(v.items(l), matches), nil
}

// items returns the items of a list. v has each list of the plan with which its Inventory was used last.
func (v *View) items(l *ListPlan) *items { return v.lists[l.key].items }

// Any reports whether is returns true for an item of a list in v.
func (v *View) Any(l *ListPlan, is func(item []byte) bool) bool {
	return slices.ContainsFunc(v.items(l).bodies, is)
}

// Named reports whether an item of a list in v has a name, by id or another one, or is the only one whose id begins so.
func (v *View) Named(l *ListPlan, name string) bool {
	_, ok := l.byName(v.items(l), l.equivalents(name))
	return ok
}

// reply returns all items that match, or all if matches is nil, as the reply to a list.
func (l *ListPlan) reply(s *items, matches func(id string, item []byte) bool) []byte {
	var bodies [][]byte
	size := 0 // computed first, so that a long reply is allocated once
	for id, item := range s.all() {
		if matches == nil || matches(id, item) {
			bodies = append(bodies, item)
			size += protowire.SizeTag(l.number) + protowire.SizeBytes(len(item))
		}
	}
	b := make([]byte, 0, size)
	for _, item := range bodies {
		b = l.appendItem(b, item)
	}
	return b
}

// appendItem appends an item to a reply.
func (l *ListPlan) appendItem(b, item []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, l.number, protowire.BytesType), item)
}
