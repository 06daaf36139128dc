package memory

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/rewrite"
)

// A Spec says which answers of an API to remember. It names methods without their service.
type Spec struct {
	Lists   []List  `yaml:"lists"`
	Replies []Reply `yaml:"replies"`

	// Stamps are the fields, as "Message.field" with stars for any text, that differ in each answer, such as the time of
	// the answer itself. An answer that differs from the one before only in these is no reason to write the file.
	Stamps []string `yaml:"stamps"`
}

// gated reports whether a list of s is a gate.
func (s Spec) gated() bool {
	return slices.ContainsFunc(s.Lists, func(l List) bool { return l.Gate })
}

// A Reply is a unary method whose latest reply to an empty request is kept whole.
type Reply struct {
	Method string `yaml:"method"`

	// Every is how old the reply may be before Run asks for it, if no client does. Zero: Run never
	// asks for it, and the reply is kept when a client asks.
	Every time.Duration `yaml:"every"`

	// Live marks a reply that the primary must give itself, however long that takes,
	// such as whether it is ready.
	Live bool `yaml:"live"`
}

// A List describes the list of one kind of items, and the other methods about these items.
type List struct {
	// List is the method that returns the whole list in one message, Stream the one
	// that returns it in several. One of the two is optional. If a backend has only
	// one of the two methods, a call of the other one uses that.
	List   string `yaml:"list"`
	Stream string `yaml:"stream"`

	// ID is the path of an item's id.
	ID string `yaml:"id"`

	// Kind is the kind of name of the ids. Optional: it is for lists that show which
	// backend owns a name.
	Kind string `yaml:"kind"`

	// Names are paths to other names of the item: strings, or lists of strings.
	Names []string `yaml:"names"`

	// Filters are the filters that a request can have.
	Filters []Filter `yaml:"filters"`

	// Status is the call for the status of one item.
	Status Status `yaml:"status"`

	// Gate marks the lists that a backend must have answered before it counts as up
	// again.
	Gate bool `yaml:"gate"`

	// Optional marks a list that may lack the items of a backend if memory has none, such as a
	// list of measurements.
	Optional bool `yaml:"optional"`

	// Every is how old the list may be before Run asks for it, if no client does. Zero: Run never
	// asks for it, and the list is kept when a client asks.
	Every time.Duration `yaml:"every"`

	// Changed are the methods, or patterns of them, that may change the list. Run asks for the
	// list at once after such a call.
	Changed []string `yaml:"changed"`

	// Created are methods whose reply holds the id of a new item: method → path.
	Created map[string]string `yaml:"created"`

	// Removed are methods, or patterns of them, that remove the items that their request names
	// if they succeed.
	Removed []string `yaml:"removed"`

	// State is the path of the state of an item, an enum. Becomes says what a method of Changed makes of it when it has
	// succeeded: method → state before → state after. Lists show nothing else of that method. Memory shows such a change
	// before the backend does; after others, lists wait for the backend's next answer. Optional.
	State   string                       `yaml:"state"`
	Becomes map[string]map[string]string `yaml:"becomes"`

	// PartOf says that the items are parts of those of another list, whose statuses include them.
	PartOf PartOf `yaml:"partOf"`

	// Draft describes an item that a method of Created has just created, until the backend
	// lists it: path in the item → path in the request. The other fields of the item are empty.
	// Optional: without it only the backend's next answer shows the item.
	Draft map[string]string `yaml:"draft"`

	// Born is the path of the time at which an item was created, in nanoseconds since
	// 1970. Optional; it is for drafts.
	Born string `yaml:"born"`
}

// A PartOf names another list, and the field of an item that holds the id of its whole there.
type PartOf struct {
	List string `yaml:"list"`
	ID   string `yaml:"id"` // path in the item
}

// A Filter is a field of a list's request that narrows the list.
type Filter struct {
	Request string `yaml:"request"` // path in the request
	Item    string `yaml:"item"`    // path in the item

	// Match is how the two compare: "prefix" for ids, which may be cut short; "equal" for
	// numbers; "within" for a map, all entries of which the item's map must have.
	Match string `yaml:"match"`

	// Of names another list. Item is then a path in the item with the same id there.
	Of string `yaml:"of"`
}

// A Status is a call for one item.
type Status struct {
	Method string `yaml:"method"`
	ID     string `yaml:"id"` // path in the request
}

// list is a compiled List with its memory.
type list struct {
	spec    List
	unary   *codec.Method // nil if it has none
	stream  *codec.Method
	number  protoreflect.FieldNumber // of the items in the reply
	item    protoreflect.MessageDescriptor
	id      *rewrite.Path
	names   []*rewrite.Path
	filters []filter
	status  *statusCall
	whole   *list         // the items of this list are parts of those of whole; or nil
	wholeID *rewrite.Path // where an item has the id of its whole
	parts   []*list       // the lists of which this one is the whole

	*memory     // guarded by Memory.mu
	lag     lag // guarded by Memory.mu
	stamps  stamps
	shape   *rewrite.Shape
	latest  uint64 // the number of the latest request in the background
	round   *round // the latest list for look-ups, perhaps one that has not begun yet; nil: none; guarded by Memory.mu
}

type filter struct {
	request, item *rewrite.Path
	match         string
	of            *list
}

type statusCall struct {
	method *codec.Method
	id     *rewrite.Path
	lag    lag             // guarded by Memory.mu
	wanted map[string]bool // ids whose status Run should ask for, although memory may have it
	// wrap is the field of the reply that holds the item itself; 0 if the reply says more than
	// the item, and must be asked for.
	wrap protoreflect.FieldNumber
}

// compileLists resolves specs against the methods of a package. The error names
// every mistake.
func compileLists(specs []List, schema *codec.Schema, pkg string) ([]*list, error) {
	var lists []*list
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
		for j, f := range l.spec.Filters {
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

func compileList(spec List, schema *codec.Schema, pkg string) (*list, error) {
	l := &list{spec: spec}
	for _, m := range []struct {
		name string
		to   **codec.Method
	}{{spec.List, &l.unary}, {spec.Stream, &l.stream}} {
		if m.name == "" {
			continue
		}
		desc := findMethod(schema, pkg, m.name)
		if desc == nil {
			return nil, fmt.Errorf("no method is called %q", m.name)
		}
		if desc.ServerStreams != (m.to == &l.stream) || desc.ClientStreams {
			return nil, fmt.Errorf("%s: want a method with one reply for list, and one that streams replies for stream", m.name)
		}
		field := repeatedField(desc.Output)
		if field == nil {
			return nil, fmt.Errorf("%s: want a reply with a list of messages", m.name)
		}
		if l.item != nil && (field.Number() != l.number || field.Message() != l.item) {
			return nil, fmt.Errorf("%s and %s do not list the same messages in the same field", spec.List, spec.Stream)
		}
		l.number, l.item = field.Number(), field.Message()
		*m.to = desc
	}
	if l.item == nil {
		return nil, errors.New("want list, stream or both")
	}
	l.shape = rewrite.NewShape(l.anyMethod().Output)
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
				return nil, fmt.Errorf("%s: %q is no pattern", key, pattern)
			}
		}
	}
	if err := spec.checkDraft(schema); err != nil {
		return nil, err
	}
	if spec.Status.Method != "" {
		if l.status, err = compileStatus(spec.Status, l.item, schema, pkg); err != nil {
			return nil, fmt.Errorf("status: %w", err)
		}
	}
	return l, nil
}

func compileStatus(spec Status, item protoreflect.MessageDescriptor, schema *codec.Schema, pkg string) (*statusCall, error) {
	s := &statusCall{method: findMethod(schema, pkg, spec.Method), wanted: map[string]bool{}}
	if s.method == nil || !s.method.Unary() {
		return nil, fmt.Errorf("no unary method is called %q", spec.Method)
	}
	var err error
	if s.id, err = rewrite.ParseTextPath(s.method.Input, spec.ID); err != nil {
		return nil, err
	}
	fields := s.method.Output.Fields()
	for i := range fields.Len() {
		if fd := fields.Get(i); !fd.IsList() && fd.Message() == item {
			s.wrap = fd.Number()
		}
	}
	return s, nil
}

func (l *list) compileFilter(f Filter, lists []*list) (filter, error) {
	c := filter{match: f.Match}
	in := l.unary
	if in == nil {
		in = l.stream
	}
	var err error
	if c.request, err = rewrite.ParsePath(in.Input, f.Request); err != nil {
		return c, fmt.Errorf("request: %w", err)
	}
	item := l.item
	if f.Of != "" {
		for _, other := range lists {
			if other.spec.List == f.Of {
				c.of, item = other, other.item
			}
		}
		if c.of == nil {
			return c, fmt.Errorf("of: no list is called %q", f.Of)
		}
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
		err = fmt.Errorf("match: is %q, want prefix, equal or within", f.Match)
	}
	return c, err
}

func (l *list) compilePartOf(lists []*list) (err error) {
	if l.spec.PartOf == (PartOf{}) {
		return nil
	}
	for _, other := range lists {
		if other.spec.List == l.spec.PartOf.List && other.asksStatus() {
			l.whole, other.parts = other, append(other.parts, l)
		}
	}
	if l.whole == nil {
		return fmt.Errorf("list: no list with a status of its own is called %q", l.spec.PartOf.List)
	}
	if l.wholeID, err = rewrite.ParseTextPath(l.item, l.spec.PartOf.ID); err != nil {
		return fmt.Errorf("id: %w", err)
	}
	return nil
}

// findMethod finds a method of a package, in whichever service, by its short name.
func findMethod(schema *codec.Schema, pkg, name string) *codec.Method {
	for _, m := range schema.Methods() {
		if strings.HasPrefix(m.Name, "/"+pkg+".") && strings.HasSuffix(m.Name, "/"+name) {
			return m
		}
	}
	return nil
}

// repeatedField returns the list of messages that md has, of several the one with the lowest
// number: what a newer version of an API adds is about the list.
func repeatedField(md protoreflect.MessageDescriptor) (list protoreflect.FieldDescriptor) {
	for i := range md.Fields().Len() {
		fd := md.Fields().Get(i)
		if fd.IsList() && fd.Message() != nil && (list == nil || fd.Number() < list.Number()) {
			list = fd
		}
	}
	return list
}

// Check returns every mistake in s for the methods of a package.
func (s Spec) Check(schema *codec.Schema, pkg string) error {
	_, lists := compileLists(s.Lists, schema, pkg)
	_, replies := compileReplies(s.Replies, schema, pkg)
	errs := append([]error{lists, replies}, s.checkStamps(schema, pkg)...)
	for i, l := range s.Lists {
		for _, names := range []struct {
			key string
			all []string
		}{{"changed", l.Changed}, {"removed", l.Removed}, {"created", slices.Sorted(maps.Keys(l.Created))}, {"becomes", slices.Sorted(maps.Keys(l.Becomes))}} {
			for _, name := range names.all {
				m := findMethod(schema, pkg, name)
				switch {
				case m == nil && !strings.ContainsAny(name, "*?["): // a pattern may be for a newer version
					errs = append(errs, fmt.Errorf("known.lists[%d].%s: no method is called %q", i, names.key, name))
				case m != nil && names.key == "created":
					if _, err := rewrite.ParseTextPath(m.Output, l.Created[name]); err != nil {
						errs = append(errs, fmt.Errorf("known.lists[%d].created.%s: %w", i, name, err))
					}
				}
			}
		}
	}
	return errors.Join(errs...)
}

// checkStamps returns an error for each stamp that no reply of a package has.
func (s Spec) checkStamps(schema *codec.Schema, pkg string) (errs []error) {
	var replies []protoreflect.MessageDescriptor
	for _, m := range schema.Methods() {
		if strings.HasPrefix(m.Name, "/"+pkg+".") {
			replies = append(replies, m.Output)
		}
	}
	all := rewrite.Reachable(replies)
	for i, stamp := range s.Stamps {
		if _, err := all.Classify([]rewrite.Rule{{Field: stamp, Class: 1}}); err != nil {
			errs = append(errs, fmt.Errorf("known.stamps[%d]: %w", i, err))
		}
	}
	return errs
}
