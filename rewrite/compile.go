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

	"github.com/criproxy/criproxy/internal/base/suggest"
)

// A Rule gives a field its class, on every path that leads to the field.
type Rule struct {
	// Field names the field: "Container.id" or, if two packages have a Container,
	// "runtime.v1.Container.id". A star stands for any text: "*.container_id" matches the
	// field of that name in every message, and "*.*_volume_id" every field whose name ends
	// in _volume_id. A rule with a star matches only strings, lists of strings, and maps
	// with string values. The class of a map applies to its values.
	//
	// If several rules match a field, one without a star wins over one whose message is a
	// pattern, and that one over a rule whose field is a pattern.
	//
	// The field must hold strings, bytes or messages. No rule reaches into a message that
	// has a class itself: the [Edit] gets the whole message.
	Field string

	// Class is what the field holds. Zero exempts the field from rules with a star.
	Class Class

	// Absent has the [Edit] called, with no value, also for a message without the field.
	// What the Edit appends then becomes the field. Only a single string or bytes field
	// outside of a oneof can have Absent.
	Absent bool
}

// Classes are rules resolved against the messages of an API. They are immutable and safe for
// concurrent use.
type Classes struct {
	fields map[protoreflect.FullName]Class // :: field → class, of all fields that rules name
	absent map[protoreflect.FullName]bool  // :: field → the edit also gets messages without it
	nodes  func() nodes                    // for plans; the first call makes them
}

// nodes are the nodes of a plan, by message. A message that leads to no class has none.
type nodes map[protoreflect.FullName]*node

// Classify is [Messages.Classify] on all messages that roots lead to.
func Classify(roots []protoreflect.MessageDescriptor, rules []Rule) (*Classes, error) {
	return Reachable(roots).Classify(rules)
}

// Classify resolves rules against the messages. Its error joins a [RuleError], with the likely
// correction, for every rule that is wrong or matches nothing: an id would leak through a rule
// that silently matched nothing. Even with an error Classify returns the classes of the other
// rules, so that the caller can go on to look for further mistakes.
func (m *Messages) Classify(rules []Rule) (*Classes, error) {
	c := &Classes{fields: map[protoreflect.FullName]Class{}, absent: map[protoreflect.FullName]bool{}}
	var errs []error
	for rank := patternRank; rank >= exactRank; rank-- { // exact rules last, so that they win
		by := map[protoreflect.FullName]Rule{} // :: field → the rule of this rank
		for _, r := range rules {
			dot := strings.LastIndexByte(r.Field, '.')
			if dot <= 0 || dot == len(r.Field)-1 {
				if rank == exactRank {
					errs = append(errs, &RuleError{r.Field, errors.New("want \"Message.field\" or \"*.field\"")})
				}
				continue
			}
			message, name := r.Field[:dot], r.Field[dot+1:]
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

// A RuleError says why a rule is wrong, or that it matches nothing.
type RuleError struct {
	Field string // the Field of the Rule
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

// classify gives their class to the fields that one rule names. by holds the rules of the same rank so far: two of them
// must not give one field different classes.
func (c *Classes) classify(all *Messages, message, name string, rule Rule, by map[protoreflect.FullName]Rule) error {
	exact := rankOf(message, name) == exactRank
	if _, err := path.Match(name, ""); err != nil {
		return errors.New("invalid pattern: want a name, or one with * for any text")
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
				return errors.New("is not a single string, and cannot be added to a message without it")
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

// isString reports whether a field is a string, a list of strings, or a map with string values.
func isString(fd protoreflect.FieldDescriptor) bool {
	if fd.IsMap() {
		fd = fd.MapValue()
	}
	return fd.Kind() == protoreflect.StringKind
}

// classifiable returns an error for a field that no Edit can get: it must hold strings, bytes or messages.
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

// compile makes the nodes of all messages that lead to a class: those are live. It makes all nodes before it links
// them, because messages may contain each other.
func (c *Classes) compile(all []protoreflect.MessageDescriptor) nodes {
	live := nodes{}
	for again := true; again; { // messages may be recursive: repeat until nothing new is live
		again = false
		for _, md := range all {
			if live[md.FullName()] != nil {
				continue
			}
			for i := range md.Fields().Len() {
				fd := md.Fields().Get(i)
				if c.fields[fd.FullName()] != 0 || fd.Message() != nil && live[fd.Message().FullName()] != nil {
					live[md.FullName()], again = &node{}, true
					break
				}
			}
		}
	}
	for _, md := range all {
		n := live[md.FullName()]
		if n == nil {
			continue
		}
		for i := range md.Fields().Len() {
			fd := md.Fields().Get(i)
			class := c.fields[fd.FullName()]
			switch {
			case class != 0 && fd.IsMap():
				// The value of every entry: an entry is a message with key 1 and value 2.
				entry := &node{}
				entry.set(fd.MapValue().Number(), step{class: class})
				n.set(fd.Number(), step{into: entry})
			case class != 0:
				n.set(fd.Number(), step{class: class})
				if c.absent[fd.FullName()] {
					n.absent = append(n.absent, absentField{fd.Number(), class})
				}
			case fd.Message() != nil && live[fd.Message().FullName()] != nil:
				into := live[fd.Message().FullName()]
				if fd.Kind() == protoreflect.GroupKind {
					n.set(fd.Number(), step{group: into})
				} else {
					n.set(fd.Number(), step{into: into})
				}
			}
		}
	}
	return live
}

// set stores what to do with the field num. It is for the time before the plan is used.
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

// Of returns the class of fd, or zero if it has none.
func (c *Classes) Of(fd protoreflect.FieldDescriptor) Class { return c.fields[fd.FullName()] }

// Named reports whether a rule matches fd, even one whose class is zero.
func (c *Classes) Named(fd protoreflect.FieldDescriptor) bool {
	_, named := c.fields[fd.FullName()]
	return named
}

// Plan returns the plan for messages of type md. It is nil, which is a valid plan, if no field in
// them has a class.
func (c *Classes) Plan(md protoreflect.MessageDescriptor) *Plan {
	n := c.nodes()[md.FullName()]
	if n == nil {
		return nil
	}
	return &Plan{root: n, paths: c.pathsFrom(nil, md, "", nil)}
}

// A ClassifiedPath is a way from a message to a field that has a class, as in
// "containers[].image.image" or "info{}".
type ClassifiedPath struct {
	Path  string
	Class Class
	Field protoreflect.FieldDescriptor
}

// Paths lists every classified field that the plan reaches, in the order of the descriptors. It
// follows a message that contains itself once. The caller must not change the slice.
func (p *Plan) Paths() []ClassifiedPath {
	if p == nil {
		return nil
	}
	return p.paths
}

// pathsFrom appends to paths those that begin at md. prefix is the path to md, and above are the messages on the way to it.
func (c *Classes) pathsFrom(paths []ClassifiedPath, md protoreflect.MessageDescriptor, prefix string, above []protoreflect.FullName) []ClassifiedPath {
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
			paths = c.pathsFrom(paths, sub, at+".", above)
		}
	}
	return paths
}
