package memory

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/rewrite"
)

// A remembered answer lacks the changes that clients have made since. This file makes them in memory:
//
//   - An item that a client has created. Its draft stands in the list until the backend
//     lists it: a list must not lack a pod whose id a client has got already.
//   - An item that a client has removed. It leaves the list at once.
//   - An item that a client has started or stopped. It has its new state at once.
//
// The backend may answer a request that was made before the change after it. So an item stays as the
// call left it until the answer to a later request, or one that shows the item as it is after.

// change is what calls have done to an item. If they have neither created it nor given it a state, the
// last one has removed it.
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

// A draft says how to describe an item by the request that created it.
type draft struct {
	copies []copied
	born   *rewrite.Path // nil: it does not say when it was created
}

// copied is a field of the item that is a copy of one in the request.
type copied struct{ item, request *rewrite.Path }

// compileDraft returns the draft of the items that m creates. It leaves out fields that the
// request of m or the item does not have: several methods may create such items, with
// different fields in their requests, and earlier versions of an API have fewer fields.
func (l *list) compileDraft(m *codec.Method) (*draft, error) {
	if len(l.spec.Draft) == 0 {
		return nil, nil
	}
	d := &draft{}
	for at, from := range l.spec.Draft {
		item, itemErr := rewrite.ParsePath(l.item, at)
		request, err := rewrite.ParsePath(m.Input, from)
		if itemErr != nil || err != nil {
			continue
		}
		if !sameForm(item.Leaf(), request.Leaf()) {
			return nil, fmt.Errorf("%s of the item and %s of the request of %s are not of one type that can be copied: want strings, messages, or lists or maps of them", at, from, m.Name)
		}
		d.copies = append(d.copies, copied{item, request})
	}
	slices.SortFunc(d.copies, func(a, b copied) int { return int(a.item.Leaf().Number() - b.item.Leaf().Number()) })
	if l.spec.Born != "" {
		born, err := rewrite.ParsePath(l.item, l.spec.Born)
		if err != nil {
			return nil, err
		}
		if k := born.Leaf().Kind(); k != protoreflect.Int64Kind && k != protoreflect.Uint64Kind || born.Leaf().IsList() {
			return nil, fmt.Errorf("born: %s is not an int64 or uint64", l.spec.Born)
		}
		d.born = born
	}
	return d, nil
}

// checkDraft returns an error for paths of a draft that no version of the API has. A version may
// lack fields and methods of a newer one.
func (spec List) checkDraft(schema *codec.Schema) error {
	var errs []error
	for _, at := range slices.Sorted(maps.Keys(spec.Draft)) {
		from := spec.Draft[at]
		var items, requests []protoreflect.MessageDescriptor
		for _, m := range schema.Methods() {
			short := path.Base(m.Name)
			if _, creates := spec.Created[short]; creates {
				requests = append(requests, m.Input)
			}
			if field := repeatedField(m.Output); field != nil && (short == spec.List || short == spec.Stream) {
				items = append(items, field.Message())
			}
		}
		if !leads(at, items) {
			errs = append(errs, fmt.Errorf("draft.%s: no item of %s has this field", at, cmp.Or(spec.List, spec.Stream)))
		}
		if !leads(from, requests) {
			errs = append(errs, fmt.Errorf("draft.%s: no request that creates an item has the field %s", at, from))
		}
	}
	return errors.Join(errs...)
}

// leads reports whether a path leads to a field of at least one message.
func leads(text string, messages []protoreflect.MessageDescriptor) bool {
	return slices.ContainsFunc(messages, func(md protoreflect.MessageDescriptor) bool {
		_, err := rewrite.ParsePath(md, text)
		return err == nil
	})
}

// FitDraft returns the draft of spec without the paths that the schema does not have, and those.
func (spec List) FitDraft(schema *codec.Schema) (fit map[string]string, left []string) {
	fit = maps.Clone(spec.Draft)
	for _, at := range slices.Sorted(maps.Keys(spec.Draft)) {
		one := spec
		if one.Draft = map[string]string{at: spec.Draft[at]}; one.checkDraft(schema) != nil {
			delete(fit, at)
			left = append(left, "draft."+at)
		}
	}
	return fit, left
}

// sameForm reports whether a value of a can be copied to b as it stands on the wire.
func sameForm(a, b protoreflect.FieldDescriptor) bool {
	if a.Kind() != b.Kind() || a.IsList() != b.IsList() || a.IsMap() != b.IsMap() {
		return false
	}
	switch {
	case a.IsMap():
		return a.MapKey().Kind() == b.MapKey().Kind() && a.MapValue().Kind() == b.MapValue().Kind() && a.MapValue().Message() == b.MapValue().Message()
	case a.Kind() == protoreflect.MessageKind:
		return a.Message() == b.Message()
	}
	return a.Kind() == protoreflect.StringKind || a.Kind() == protoreflect.BytesKind
}

// of returns the item with an id that request has created now. It is nil where there is no
// draft, or the request is broken.
func (d *draft) of(id *rewrite.Path, named, request []byte, now time.Time) []byte {
	if d == nil {
		return nil
	}
	item := id.Append(nil, named)
	for _, c := range d.copies {
		err := c.request.All(request, func(value []byte) error {
			item = c.item.Append(item, value)
			return nil
		})
		if err != nil {
			return nil
		}
	}
	if d.born != nil {
		item = d.born.AppendVarint(item, uint64(now.UnixNano()))
	}
	return item
}

// create notes an item that a call has created. item is nil if there is no draft of it.
func (l *list) create(id string, item []byte) {
	l.settle()
	l.former.remove(id)
	l.changes[id] = change{before: l.asked, created: true}
	l.changesWhole(item)
	if _, listed := l.items.get(id); !listed && item != nil {
		l.items.put(id, item)
		l.news = true
	}
}

// remove notes an item that a call has removed.
func (l *list) remove(id string) {
	l.settle()
	item, listed := l.items.get(id)
	if listed || l.changes[id].created { // an item that it never had may be another backend's
		l.leaves(id)
	}
	l.changes[id] = change{before: l.asked}
	if listed {
		l.changesWhole(item)
		l.items.remove(id)
		delete(l.statuses, id)
		l.news = true
	}
}

// removeNamed is remove for a call that names an item by its id or by another name, and reports whether it was the id of
// one that is listed. The item may keep its other names, or go with its only one: then the backend must say which.
func (l *list) removeNamed(name string) bool {
	l.settle()
	_, listed := l.items.get(name)
	if listed {
		l.remove(name)
	}
	return listed
}

// emptied says that a call has removed all items with a value at a path, as the removal of a pod removes its containers.
// The answer to an earlier request may have one that memory has never seen: its client was gone when it was created.
type emptied struct {
	at     *rewrite.Path
	before uint64 // the latest request before
}

// removedSince reports whether a call has removed an item, by the value of a field, since request seq.
func (l *list) removedSince(seq uint64, item []byte) bool {
	for value, e := range l.emptied {
		if got, _, err := e.at.Lookup(item); err == nil && string(got) == value && seq <= e.before {
			return true
		}
	}
	return false
}

// leaveEmptied takes out of an answer what a call has removed by the value of a field since its request.
func (l *list) leaveEmptied(answer *items) {
	if len(l.emptied) == 0 {
		return
	}
	for _, id := range slices.Clone(answer.ids) {
		if body, _ := answer.get(id); l.removedSince(l.answered, body) {
			answer.remove(id)
		}
	}
}

// keepChanged gives an answer the items as calls have left them since its request.
func (l *list) keepChanged(answer *items) {
	l.leaveEmptied(answer)
	for id, c := range l.changes {
		theirs, listed := answer.get(id)
		switch ours, known := l.items.get(id); {
		case c.follows(theirs, listed):
		case known:
			answer.put(id, ours)
		default:
			answer.remove(id)
		}
	}
}

// becomes is what a method makes of the state of an item.
type becomes struct {
	state *rewrite.Path
	after map[uint64]uint64 // :: state before → after; empty: lists show nothing of the method
}

// compileBecomes returns what a method makes of items, or nil if the profile does not say it.
func (l *list) compileBecomes(method string) (*becomes, error) {
	states, ok := l.spec.Becomes[method]
	if !ok {
		return nil, nil
	}
	b := &becomes{after: map[uint64]uint64{}}
	if len(states) == 0 {
		return b, nil
	}
	var err error
	if b.state, err = rewrite.ParsePath(l.item, l.spec.State); err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	if b.state.Leaf().Enum() == nil {
		return nil, fmt.Errorf("state: %s is no enum", l.spec.State)
	}
	values := b.state.Leaf().Enum().Values()
	for before, after := range states {
		from, to := values.ByName(protoreflect.Name(before)), values.ByName(protoreflect.Name(after))
		if from == nil || to == nil {
			return nil, fmt.Errorf("%s has no value %s or %s", l.spec.State, before, after)
		}
		b.after[uint64(from.Number())] = uint64(to.Number())
	}
	return b, nil
}

// become notes what a call has made of an item, and reports whether that is known.
func (l *list) become(id string, b *becomes) (known bool) {
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
	l.items.put(id, changed)
	was := slices.DeleteFunc(slices.Clone(l.changes[id].was), func(s uint64) bool { return s == after })
	for from, to := range b.after {
		if from != to && from != after && !slices.Contains(was, from) {
			was = append(was, from)
		}
	}
	l.changes[id] = change{l.asked, l.changes[id].created, b.state, was}
	l.news = true
	return true
}

// shownSince forgets the changes that the answer to request seq shows.
func (l *memory) shownSince(seq uint64) {
	maps.DeleteFunc(l.changes, func(_ string, c change) bool { return c.before < seq })
	maps.DeleteFunc(l.emptied, func(_ string, e emptied) bool { return e.before < seq })
	maps.DeleteFunc(l.renamed, func(_ string, before uint64) bool { return before < seq })
}
