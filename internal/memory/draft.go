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

// A remembered answer lacks the changes that clients have made since. This file adds them:
//
//   - An item that a client has created. Its draft stands in the list until the backend
//     lists it: a list must not lack a pod whose id a client has got already.
//   - An item that a client has removed. It leaves the list at once.
//
// The backend may answer a request that was made before the change after it. So each change is
// kept until the answer to a later request.

// A creation is an item that a call has created.
type creation struct {
	before uint64 // the latest request before
	draft  []byte // the item as its request describes it, or as the backend has listed it since; nil if there is neither
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
			return nil, fmt.Errorf("born: %s is no number of 64 bits", l.spec.Born)
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

// create notes an item that a call has created.
func (l *list) create(id string, item []byte) {
	l.settle()
	delete(l.removals, id)
	delete(l.removed, id)
	l.creations[id] = creation{l.asked, item}
	l.changesWhole(item, true)
	l.amendCreation(id)
}

// remove notes an item that a call has removed.
func (l *list) remove(id string) {
	l.settle()
	item, listed := l.items.get(id)
	if _, created := l.creations[id]; listed || created { // an item that it never had may be another backend's
		if len(l.removed) >= mostRemoved {
			clear(l.removed)
		}
		l.removed[id] = struct{}{}
	}
	delete(l.creations, id)
	if listed {
		l.changesWhole(item, true)
	}
	l.removals[id] = l.asked
	l.amendRemoval(id)
}

// mostRemoved bounds how many removed items a list remembers. CRI wants stopping and removing an
// item that is gone to succeed, and only the backend that had the item can answer so.
const mostRemoved = 2_000

// amend adds to the remembered items what clients have changed since.
func (l *list) amend() {
	for id := range l.creations {
		l.amendCreation(id)
	}
	for id := range l.removals {
		l.amendRemoval(id)
	}
}

func (l *list) amendCreation(id string) {
	c := l.creations[id]
	switch item, listed := l.items.get(id); {
	case listed: // a late answer to an earlier request may lack it again
		c.draft = item
		l.creations[id] = c
	case c.draft != nil:
		l.items.put(id, c.draft)
		l.news = true
	}
}

func (l *list) amendRemoval(id string) {
	if l.items.remove(id) {
		delete(l.statuses, id)
		delete(l.stale, id)
		delete(l.outdated, id)
		l.news = true
	}
}

// dropDrafts forgets the drafts of new items, but not that there are such items.
func (l *list) dropDrafts() {
	for id, c := range l.creations {
		c.draft = nil
		l.creations[id] = c
	}
}

// shownSince forgets the changes that the answer to request seq shows.
func (l *memory) shownSince(seq uint64) {
	for id, c := range l.creations {
		if c.before < seq {
			delete(l.creations, id)
		}
	}
	for _, changes := range []map[string]uint64{l.removals, l.renamed} {
		maps.DeleteFunc(changes, func(_ string, before uint64) bool { return before < seq })
	}
}
