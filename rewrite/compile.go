package rewrite

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/internal/suggest"
)

// A Rule gives the class of a field, wherever messages reach it.
type Rule struct {
	// Field names it: "Container.id" or, where two packages have a Container,
	// "runtime.v1.Container.id". A star stands for anything: "*.container_id" is the
	// field of that name in every message, "*.*_volume_id" all that end so. Patterns
	// match strings only: fields, lists and the values of maps. The content of a map
	// is its values.
	//
	// A rule without a star goes before one that names the field, and that before one
	// with a pattern for the field.
	//
	// The field may be a string, bytes, or a message; what lies inside of a
	// message that has a class is the business of the [Edit].
	Field string

	// Class is what the field holds. Zero exempts the field from patterns.
	Class Class

	// Absent also calls the [Edit] for a message that does not have the field, with no value;
	// what the Edit appends becomes the field. It is for a string or bytes field that is no
	// list, of which an empty one is not on the wire.
	Absent bool
}

// Classes are rules resolved against the messages of an API. They are
// immutable.
type Classes struct {
	fields map[protoreflect.FullName]Class // :: field → class, of all that rules name
	absent map[protoreflect.FullName]bool  // :: field → it is edited where it is not there, too
	nodes  func() nodes                    // for plans; they are made when the first plan is asked for
}

// nodes say what to do in messages, by name; messages with nothing to do have none.
type nodes map[protoreflect.FullName]*node

// Classify is [Messages.Classify] on all messages that can be reached from roots.
func Classify(roots []protoreflect.MessageDescriptor, rules []Rule) (*Classes, error) {
	return Reachable(roots).Classify(rules)
}

// Classify resolves rules against the messages. Its error joins a [RuleError] for every rule that
// is wrong or matches nothing, with what was probably meant: a rule that silently matches nothing
// is an id that leaks. The classes are those of the other rules, to find further mistakes with.
func (m *Messages) Classify(rules []Rule) (*Classes, error) {
	c := &Classes{fields: map[protoreflect.FullName]Class{}, absent: map[protoreflect.FullName]bool{}}
	var errs []error
	for rank := patternRank; rank >= exactRank; rank-- { // the strongest last, so that they win
		by := map[protoreflect.FullName]Rule{} // :: field → the rule of this rank
		for _, r := range rules {
			message, name, ok := cutLast(r.Field, ".")
			if !ok || message == "" || name == "" {
				if rank == exactRank {
					errs = append(errs, &RuleError{r.Field, errors.New("want \"Message.field\" or \"*.field\"")})
				}
				continue
			}
			if rankOf(message, name) != rank {
				continue
			}
			if err := c.classify(m, message, name, r, by); err != nil {
				errs = append(errs, &RuleError{r.Field, err})
			}
		}
	}
	c.nodes = sync.OnceValue(func() nodes { return c.compile(m.all) })
	return c, errors.Join(errs...)
}

// A RuleError is a rule that is wrong, or matches nothing.
type RuleError struct {
	Field string // as the rule has it
	Err   error
}

func (e *RuleError) Error() string { return e.Field + ": " + e.Err.Error() }
func (e *RuleError) Unwrap() error { return e.Err }

// How exactly a rule names its fields.
const (
	exactRank   = iota // "Container.id"
	fieldRank          // "*.id"
	patternRank        // "*.*_id"
)

func rankOf(message, field string) int {
	switch {
	case strings.Contains(field, "*"):
		return patternRank
	case strings.Contains(message, "*"):
		return fieldRank
	default:
		return exactRank
	}
}

func (c *Classes) classify(all *Messages, message, name string, rule Rule, by map[protoreflect.FullName]Rule) error {
	exact := rankOf(message, name) == exactRank
	if _, err := path.Match(name, ""); err != nil {
		return errors.New("is no pattern")
	}
	named := all.named(message)
	matched := false
	for _, md := range named {
		for fd := range fieldsNamed(md, name) {
			if !exact && !isString(fd) {
				continue
			}
			if err := classifiable(fd); err != nil {
				return err
			}
			if rule.Absent && (fd.IsList() || fd.IsMap() || fd.Message() != nil || fd.ContainingOneof() != nil) {
				return errors.New("is no single string, and cannot be added where it is not there")
			}
			if other, twice := by[fd.FullName()]; twice && other.Class != rule.Class {
				if other.Field == rule.Field {
					return errors.New("has two classes")
				}
				return fmt.Errorf("%s.%s is matched by %s as well, which says something else; name it without a star", md.Name(), fd.Name(), other.Field)
			}
			by[fd.FullName()] = rule
			c.fields[fd.FullName()], c.absent[fd.FullName()] = rule.Class, rule.Absent
			matched = true
		}
	}
	switch {
	case matched:
		return nil
	case len(named) == 0:
		var names []string
		for _, md := range all.all {
			names = append(names, string(md.Name()))
		}
		return fmt.Errorf("no such message%s", suggest.Nearest(message, names))
	}
	var names []string
	for _, md := range named {
		for fd := range fieldsNamed(md, "*") {
			names = append(names, string(fd.Name()))
		}
	}
	if exact {
		return fmt.Errorf("no such field%s", suggest.Nearest(name, names))
	}
	return fmt.Errorf("no message has a string field of that name%s", suggest.Nearest(name, names))
}

// isString reports whether a field holds strings: one, a list, or a map to them.
func isString(fd protoreflect.FieldDescriptor) bool {
	if fd.IsMap() {
		fd = fd.MapValue()
	}
	return fd.Kind() == protoreflect.StringKind
}

func classifiable(fd protoreflect.FieldDescriptor) error {
	if fd.IsMap() {
		fd = fd.MapValue()
	}
	switch fd.Kind() {
	case protoreflect.StringKind, protoreflect.BytesKind, protoreflect.MessageKind:
		return nil
	default:
		return fmt.Errorf("is a %s; only string, bytes and message fields can have a class", fd.Kind())
	}
}

// compile builds the nodes: first one a message, then without those that lead
// to no class.
func (c *Classes) compile(all []protoreflect.MessageDescriptor) nodes {
	every, needed := nodes{}, nodes{}
	for _, md := range all {
		every[md.FullName()] = &node{name: md.FullName()}
	}
	live := map[protoreflect.FullName]bool{}
	for again := true; again; { // messages may be recursive: repeat until nothing new is live
		again = false
		for _, md := range all {
			if live[md.FullName()] {
				continue
			}
			for i := range md.Fields().Len() {
				fd := md.Fields().Get(i)
				if c.fields[fd.FullName()] != 0 || fd.Message() != nil && live[fd.Message().FullName()] {
					live[md.FullName()], again = true, true
					break
				}
			}
		}
	}
	for _, md := range all {
		if !live[md.FullName()] {
			continue
		}
		n := every[md.FullName()]
		needed[n.name] = n
		for i := range md.Fields().Len() {
			fd := md.Fields().Get(i)
			class := c.fields[fd.FullName()]
			switch {
			case class != 0 && fd.IsMap():
				// The value of every entry: an entry is a message with key 1 and value 2.
				entry := &node{name: fd.Message().FullName()}
				entry.set(fd.MapValue().Number(), step{class: class})
				n.set(fd.Number(), step{into: entry})
			case class != 0:
				n.set(fd.Number(), step{class: class})
				if c.absent[fd.FullName()] {
					n.absent = append(n.absent, absentField{fd.Number(), class})
				}
			case fd.Message() != nil && live[fd.Message().FullName()]:
				into := every[fd.Message().FullName()]
				if fd.Kind() == protoreflect.GroupKind {
					n.set(fd.Number(), step{group: into})
				} else {
					n.set(fd.Number(), step{into: into})
				}
			}
		}
	}
	return needed
}

func (n *node) set(num protowire.Number, s step) {
	if num > maxLow {
		if n.high == nil {
			n.high = map[protowire.Number]*step{}
		}
		n.high[num] = &s
		return
	}
	for len(n.low) <= int(num) {
		n.low = append(n.low, step{})
	}
	n.low[num] = s
}

// Of returns the class of fd, zero if it has none.
func (c *Classes) Of(fd protoreflect.FieldDescriptor) Class { return c.fields[fd.FullName()] }

// Named reports whether a rule names fd, also one that gives it no class.
func (c *Classes) Named(fd protoreflect.FieldDescriptor) bool {
	_, named := c.fields[fd.FullName()]
	return named
}

// Plan returns the plan for messages of type md; nil, which is a plan too, if nothing in them
// has a class.
func (c *Classes) Plan(md protoreflect.MessageDescriptor) *Plan {
	n := c.nodes()[md.FullName()]
	if n == nil {
		return nil
	}
	return &Plan{root: n, paths: c.walk(nil, md, "", nil)}
}

// A ClassifiedPath is a way from a message to a field that has a class, as in
// "containers[].image.image" or "info{}".
type ClassifiedPath struct {
	Path  string
	Class Class
	Field protoreflect.FieldDescriptor
}

// Paths lists every classified field the plan reaches, in the order of the
// descriptors. Where a message contains itself, it is followed once.
func (p *Plan) Paths() []ClassifiedPath {
	if p == nil {
		return nil
	}
	return p.paths
}

func (c *Classes) walk(paths []ClassifiedPath, md protoreflect.MessageDescriptor, prefix string, above []protoreflect.FullName) []ClassifiedPath {
	if c.nodes()[md.FullName()] == nil || slices.Contains(above, md.FullName()) {
		return paths
	}
	above = append(above, md.FullName())
	for i := range md.Fields().Len() {
		fd := md.Fields().Get(i)
		at := prefix + string(fd.Name())
		switch {
		case fd.IsMap():
			at += "{}"
		case fd.IsList():
			at += "[]"
		}
		if class := c.fields[fd.FullName()]; class != 0 {
			paths = append(paths, ClassifiedPath{at, class, fd})
		} else if sub := fd.Message(); sub != nil {
			if fd.IsMap() {
				if sub = fd.MapValue().Message(); sub == nil {
					continue
				}
			}
			paths = c.walk(paths, sub, at+".", above)
		}
	}
	return paths
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}
