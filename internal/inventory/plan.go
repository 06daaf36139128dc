package inventory

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/rewrite"
)

// A Plan is a compiled [Spec]. It does not change, and is safe for concurrent use.
type Plan struct {
	Lists   []*ListPlan
	Replies []*ReplyPlan

	effects map[string][]effect // :: full method → what a call of it does to lists
}

// A ListPlan is a compiled [List]. It does not change once Compile has returned, and is safe for concurrent use. It reads the
// items of replies, and finds those that a request asks for. It holds no items itself.
type ListPlan struct {
	Spec   List
	Unary  *codec.Method // nil if it has none
	Stream *codec.Method
	Status *StatusPlan    // nil if it has none
	Shape  *rewrite.Shape // of the reply

	key         string                   // under which an Inventory keeps the list
	number      protoreflect.FieldNumber // of the items in the reply
	item        protoreflect.MessageDescriptor
	id          *rewrite.Path
	names       []*rewrite.Path
	filters     []filter
	stamps      stamps
	equivalents func(name string) []string
	whole       *ListPlan     // the items of this list are parts of those of whole, such as containers of pods; or nil
	wholeID     *rewrite.Path // where an item has the id of its whole
}

// A filter is a compiled [Filter].
type filter struct {
	request, item *rewrite.Path
	match         string
	of            *ListPlan // whose items have the field; nil: those of the list itself
}

// A StatusPlan is a compiled [Status]. It does not change. There are two kinds: a status that holds the item itself follows from
// the list, and is never asked for.
type StatusPlan struct {
	Method *codec.Method
	ID     *rewrite.Path // in the request
	// wrap is the field of the reply that holds the item itself; 0 if the reply says more than
	// the item, and must be asked for.
	wrap protoreflect.FieldNumber
}

// A ReplyPlan is a compiled [Reply].
type ReplyPlan struct {
	Spec   Reply
	Method *codec.Method
	Shape  *rewrite.Shape // of the reply
	stamps stamps
}

// Compile resolves spec against the methods of a package. The error names every mistake. equivalents returns all names
// under which an item with this name may be listed, the name itself included; nil means that there are no others.
func Compile(spec Spec, schema *codec.Schema, pkg string, equivalents func(name string) []string) (*Plan, error) {
	lists, err := compileLists(spec.Lists, schema, pkg)
	errs := []error{err}
	p := &Plan{Lists: lists, effects: map[string][]effect{}}
	for i, r := range spec.Replies {
		if m := findMethod(schema, pkg, r.Method); m != nil && m.Unary() {
			p.Replies = append(p.Replies, &ReplyPlan{r, m, rewrite.NewShape(m.Output), spec.Stamps})
		} else {
			errs = append(errs, fmt.Errorf("known.replies[%d]: no unary method is called %q", i, r.Method))
		}
	}
	if equivalents == nil {
		equivalents = func(name string) []string { return []string{name} }
	}
	for i, l := range lists {
		l.stamps, l.equivalents = spec.Stamps, equivalents
		for _, m := range schema.Methods() {
			if !inPackage(m, pkg) {
				continue
			}
			e, err := l.compileEffect(m)
			if err != nil {
				errs = append(errs, fmt.Errorf("known.lists[%d].%w", i, err))
			} else if e != nil {
				p.effects[m.Name] = append(p.effects[m.Name], *e)
			}
		}
	}
	return p, errors.Join(errs...)
}

// Method returns the method of the list: the unary one, if it has both.
func (l *ListPlan) Method() *codec.Method {
	if l.Unary != nil {
		return l.Unary
	}
	return l.Stream
}

// AsksStatus reports whether the status of an item says more than the item itself.
func (l *ListPlan) AsksStatus() bool { return l.Status != nil && l.Status.wrap == 0 }

// compileLists resolves specs against the methods of a package. The error names every mistake. It compiles each list alone
// before what leads from one list to another, which may come later: filters and partOf.
func compileLists(specs []List, schema *codec.Schema, pkg string) ([]*ListPlan, error) {
	var lists []*ListPlan
	var errs []error
	for i, spec := range specs {
		l, err := compileList(spec, schema, pkg)
		if err != nil {
			errs = append(errs, fmt.Errorf("known.lists[%d]: %w", i, err))
			continue
		}
		lists = append(lists, l)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	for i, l := range lists {
		for j, f := range l.Spec.Filters {
			compiled, err := l.compileFilter(f, lists)
			if err != nil {
				errs = append(errs, fmt.Errorf("known.lists[%d].filters[%d]: %w", i, j, err))
			}
			l.filters = append(l.filters, compiled)
		}
		if err := l.compilePartOf(lists); err != nil {
			errs = append(errs, fmt.Errorf("known.lists[%d].partOf: %w", i, err))
		}
	}
	return lists, errors.Join(errs...)
}

// compileList compiles what concerns no other list. The unary method and the stream must list the same messages, so that one
// can answer for the other.
func compileList(spec List, schema *codec.Schema, pkg string) (*ListPlan, error) {
	l := &ListPlan{Spec: spec, key: spec.List + spec.Stream}
	for name, to := range map[string]**codec.Method{spec.List: &l.Unary, spec.Stream: &l.Stream} {
		if name == "" {
			continue
		}
		m := findMethod(schema, pkg, name)
		if m == nil {
			return nil, fmt.Errorf("no method is called %q", name)
		}
		if m.ServerStreams != (to == &l.Stream) || m.ClientStreams {
			return nil, fmt.Errorf("%s: want a method with one reply for list, and one that streams replies for stream", name)
		}
		field := Repeated(m.Output)
		if field == nil {
			return nil, fmt.Errorf("%s: want a reply with a list of messages", name)
		}
		if l.item != nil && (field.Number() != l.number || field.Message() != l.item) {
			return nil, fmt.Errorf("%s and %s do not list the same messages in the same field", spec.List, spec.Stream)
		}
		l.number, l.item = field.Number(), field.Message()
		*to = m
	}
	if l.item == nil {
		return nil, errors.New("want list, stream or both")
	}
	l.Shape = rewrite.NewShape(l.Method().Output)
	var err error
	if l.id, err = rewrite.ParseTextPath(l.item, spec.ID); err != nil {
		return nil, fmt.Errorf("id: %w", err)
	}
	for _, name := range spec.Names {
		p, err := rewrite.ParsePath(l.item, name)
		if err != nil {
			return nil, fmt.Errorf("names: %w", err)
		}
		l.names = append(l.names, p)
	}
	for key, patterns := range map[string][]string{"changed": spec.Changed, "removed": spec.Removed} {
		for _, pattern := range patterns {
			if _, err := path.Match(pattern, ""); err != nil {
				return nil, fmt.Errorf("%s: invalid pattern %q: want a name, or one such as List*", key, pattern)
			}
		}
	}
	if _, err := spec.CheckDraft(schema); err != nil {
		return nil, err
	}
	if spec.Status.Method != "" {
		if l.Status, err = compileStatus(spec.Status, l.item, schema, pkg); err != nil {
			return nil, fmt.Errorf("status: %w", err)
		}
	}
	return l, nil
}

// compileStatus compiles the status call of a list whose items are of type item. If the reply holds such a message in a field, as
// that for an image does, the item itself is the status, and nothing more need be asked.
func compileStatus(spec Status, item protoreflect.MessageDescriptor, schema *codec.Schema, pkg string) (*StatusPlan, error) {
	s := &StatusPlan{Method: findMethod(schema, pkg, spec.Method)}
	if s.Method == nil || !s.Method.Unary() {
		return nil, fmt.Errorf("no unary method is called %q", spec.Method)
	}
	var err error
	if s.ID, err = rewrite.ParseTextPath(s.Method.Input, spec.ID); err != nil {
		return nil, err
	}
	fields := s.Method.Output.Fields()
	for i := range fields.Len() {
		if fd := fields.Get(i); !fd.IsList() && fd.Message() == item {
			s.wrap = fd.Number()
		}
	}
	return s, nil
}

// compileFilter compiles a filter of l. Both of its fields must hold values that its match can compare.
func (l *ListPlan) compileFilter(f Filter, lists []*ListPlan) (filter, error) {
	c := filter{match: f.Match}
	var err error
	if c.request, err = rewrite.ParsePath(l.Method().Input, f.Request); err != nil {
		return c, fmt.Errorf("request: %w", err)
	}
	item := l.item
	if f.Of != "" {
		if c.of = called(f.Of, lists); c.of == nil {
			return c, fmt.Errorf("of: no list is called %q", f.Of)
		}
		item = c.of.item
	}
	if c.item, err = rewrite.ParsePath(item, f.Item); err != nil {
		return c, fmt.Errorf("item: %w", err)
	}
	switch f.Match {
	case "prefix":
		if !c.request.IsText() || !c.item.IsText() {
			err = errors.New("match: prefix is for strings only")
		}
	case "within":
		if !c.request.Leaf().IsMap() || !c.item.Leaf().IsMap() {
			err = errors.New("match: within is for maps only")
		}
	case "equal":
		if c.request.Leaf().Kind() != c.item.Leaf().Kind() || c.item.IsText() {
			err = errors.New("match: equal is for numbers and enums only")
		}
	default:
		err = fmt.Errorf("invalid match %q: want prefix, equal or within", f.Match)
	}
	return c, err
}

// compilePartOf finds the list whose items are the wholes of those of l. Only a list with statuses of its own can be that: what
// changes in a part makes the status of its whole stale.
func (l *ListPlan) compilePartOf(lists []*ListPlan) (err error) {
	if l.Spec.PartOf == (PartOf{}) {
		return nil
	}
	if l.whole = called(l.Spec.PartOf.List, lists); l.whole == nil || !l.whole.AsksStatus() {
		return fmt.Errorf("list: no list with a status of its own is called %q", l.Spec.PartOf.List)
	}
	if l.wholeID, err = rewrite.ParseTextPath(l.item, l.Spec.PartOf.ID); err != nil {
		return fmt.Errorf("id: %w", err)
	}
	return nil
}

// called returns the list of a name, nil if there is none.
func called(name string, lists []*ListPlan) *ListPlan {
	if i := slices.IndexFunc(lists, func(l *ListPlan) bool { return l.Spec.List == name }); i >= 0 {
		return lists[i]
	}
	return nil
}

// inPackage reports whether a method is one of a package.
func inPackage(m *codec.Method, pkg string) bool { return strings.HasPrefix(m.Name, "/"+pkg+".") }

// findMethod finds a method of a package, in whichever service, by its short name.
func findMethod(schema *codec.Schema, pkg, name string) *codec.Method {
	for _, m := range schema.Methods() {
		if inPackage(m, pkg) && strings.HasSuffix(m.Name, "/"+name) {
			return m
		}
	}
	return nil
}

// Repeated returns the list of messages in md with the lowest number: what a newer version of an API adds is about it. It
// returns nil if there is none.
func Repeated(md protoreflect.MessageDescriptor) (list protoreflect.FieldDescriptor) {
	for i := range md.Fields().Len() {
		fd := md.Fields().Get(i)
		if fd.IsList() && fd.Message() != nil && (list == nil || fd.Number() < list.Number()) {
			list = fd
		}
	}
	return list
}
