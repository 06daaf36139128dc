package inventory

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/rewrite"
)

// An effect says what a call of a method does to one list. It is compiled, and does not change. A call either creates an item,
// and then only created and draft count, or changes the items that its request names.
type effect struct {
	list    *ListPlan
	request *rewrite.Path // where the request names the items that the call changes; nil: nowhere
	item    *rewrite.Path // where these items have the same name; nil: it is their id
	removes bool          // the call removes these items
	becomes *becomes      // what the items become; nil: unknown
	created *rewrite.Path // where the reply has the id of a new item; nil: the call creates none
	draft   *draft        // of the new item; nil: only the backend's next answer shows it
}

// compileEffect returns the effect of a method on l, or nil if it has none.
func (l *ListPlan) compileEffect(m *codec.Method) (e *effect, err error) {
	short := path.Base(m.Name)
	e = &effect{list: l, removes: matchesAny(l.Spec.Removed, short)}
	created, creates := l.Spec.Created[short]
	if !e.removes && !creates && !matchesAny(l.Spec.Changed, short) {
		return nil, nil
	}
	if e.becomes, err = l.compileBecomes(short); err != nil {
		return nil, fmt.Errorf("becomes.%s: %w", short, err)
	}
	if !creates {
		e.request, e.item = l.target(m)
		return e, nil
	}
	if e.created, err = rewrite.ParseTextPath(m.Output, created); err != nil {
		return nil, fmt.Errorf("created.%s: %w", short, err)
	}
	if e.draft, err = l.compileDraft(m); err != nil {
		return nil, fmt.Errorf("draft: %w", err)
	}
	return e, nil
}

// Changes reports whether a call of a method may change something.
func (p *Plan) Changes(method string) bool { return len(p.effects[method]) > 0 }

// matchesAny reports whether one of patterns matches name.
func matchesAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		ok, _ := path.Match(pattern, name)
		return ok
	})
}

// A draft says how to describe an item by the request that created it, until the backend lists the item. It is compiled, and
// does not change.
type draft struct {
	copies    []copied
	createdAt *rewrite.Path // nil: the item does not say when it was created
}

// copied is a field of the item that is a copy of one in the request.
type copied struct{ item, request *rewrite.Path }

// compileDraft returns the draft of the items that m creates, without fields that its request or the item does not have:
// other methods create such items with other fields, and earlier versions of an API have fewer.
func (l *ListPlan) compileDraft(m *codec.Method) (*draft, error) {
	if len(l.Spec.Draft) == 0 {
		return nil, nil
	}
	d := &draft{}
	for at, from := range l.Spec.Draft {
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
	if l.Spec.Born != "" {
		createdAt, err := rewrite.ParsePath(l.item, l.Spec.Born)
		if err != nil {
			return nil, err
		}
		if k := createdAt.Leaf().Kind(); k != protoreflect.Int64Kind && k != protoreflect.Uint64Kind || createdAt.Leaf().IsList() {
			return nil, fmt.Errorf("invalid born %q: want the path of an int64 or uint64", l.Spec.Born)
		}
		d.createdAt = createdAt
	}
	return d, nil
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

// of returns the item that request has created now, nil where there is no draft, or the request is broken.
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
	if d.createdAt != nil {
		item = d.createdAt.AppendVarint(item, uint64(now.UnixNano()))
	}
	return item
}

// becomes is what a method makes of the state of an item.
type becomes struct {
	state *rewrite.Path
	after map[uint64]uint64 // :: state before → after; empty: lists show nothing of the method
}

// of returns the state of an item, and what b makes of it. known is false if b does not say that.
func (b *becomes) of(item []byte) (before, after uint64, known bool) {
	if b == nil || b.state == nil {
		return 0, 0, false
	}
	before, _, err := b.state.LookupVarint(item)
	after, known = b.after[before]
	return before, after, known && err == nil
}

// apply returns an item with the state that b makes of its state: a copy, or the item if b does not say that.
func (b *becomes) apply(item []byte) (changed []byte, known bool) {
	_, after, known := b.of(item)
	if !known {
		return item, false
	}
	var p rewrite.Patch
	p.SetVarint(b.state, after)
	changed, err := p.Apply(nil, item)
	if err != nil {
		return item, false
	}
	return changed, true
}

// then returns what b and then another call make of items. Both may be nil.
func (b *becomes) then(next *becomes) *becomes {
	switch {
	case b == nil || b.state == nil:
		return next
	case next == nil || next.state == nil:
		return b
	}
	after := maps.Clone(next.after)
	for before, to := range b.after {
		after[before] = to
		if last, known := next.after[to]; known {
			after[before] = last
		}
	}
	return &becomes{b.state, after}
}

// compileBecomes returns what a method makes of items, or nil if the profile does not say it.
func (l *ListPlan) compileBecomes(method string) (*becomes, error) {
	states, ok := l.Spec.Becomes[method]
	if !ok {
		return nil, nil
	}
	b := &becomes{after: map[uint64]uint64{}}
	if len(states) == 0 {
		return b, nil
	}
	var err error
	if b.state, err = rewrite.ParsePath(l.item, l.Spec.State); err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	if b.state.Leaf().Enum() == nil {
		return nil, fmt.Errorf("invalid state %q: want the path of an enum", l.Spec.State)
	}
	values := b.state.Leaf().Enum().Values()
	for before, after := range states {
		from, to := values.ByName(protoreflect.Name(before)), values.ByName(protoreflect.Name(after))
		if from == nil || to == nil {
			return nil, fmt.Errorf("%s has no value %s or %s", l.Spec.State, before, after)
		}
		b.after[uint64(from.Number())] = uint64(to.Number())
	}
	return b, nil
}

// target finds out which items of l a call of m changes. request is where the request names them, and item where they have
// that name: nil for their id. It goes by the names of fields:
//
//   - If the request has the field in which a status request names an item, it is that item.
//   - Otherwise, if it has a field by which a filter finds items by the beginning of another id, it is all those items, as
//     the request to stop a pod stops its containers.
//   - Otherwise request is nil: nobody knows which items it is.
func (l *ListPlan) target(m *codec.Method) (request, item *rewrite.Path) {
	if l.Status == nil {
		return nil, nil
	}
	if p, err := rewrite.ParseTextPath(m.Input, l.Spec.Status.ID); err == nil {
		return p, nil
	}
	for i, f := range l.Spec.Filters {
		if !l.AsksStatus() || f.Of != "" || f.Match != "prefix" || f.Item == l.Spec.ID {
			continue
		}
		if p, err := rewrite.ParseTextPath(m.Input, f.Item); err == nil {
			return p, l.filters[i].item
		}
	}
	return nil, nil
}
