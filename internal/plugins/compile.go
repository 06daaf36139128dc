package plugins

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/rewrite"
)

// program is a [Spec] resolved against descriptors. It is immutable.
type program struct {
	objects map[string]*object // :: kind
	order   []string           // the kinds, each after its parent's
	calls   map[string]*call   // :: full method
	points  map[string]*point  // :: name
	secret  map[string]bool    // :: name of a field of any object
}

type object struct {
	kind                         string
	typ                          protoreflect.MessageType
	id                           fieldPath // nil if the object has none
	uid, namespace, name, labels fieldPath
	asked                        protoreflect.FieldDescriptor
	parent                       *object
	inherits                     [][2]protoreflect.FieldDescriptor // a field, and the one of the parent that it is a copy of
}

type call struct {
	method        *codec.Method
	name          string // without package and service
	object        *object
	makes, ends   bool
	id, parent    *rewrite.Path
	fill          projection
	before, after *point // nil: there is none
	leaves        []*leaf
}

// A point is a moment before or after a call at which plugins are called.
type point struct {
	name   string
	method string // of the plugin
	answer protoreflect.MessageType
}

// compile resolves spec. Its error names everything in the spec that the schemas do not have. That
// the types of the fields fit is tested, and not checked here: the spec is part of this program.
func compile(spec *Spec, calls, hooks *codec.Schema) (*program, error) {
	c := &compiler{spec: spec, calls: calls, hooks: hooks, program: program{
		objects: map[string]*object{}, calls: map[string]*call{}, points: map[string]*point{}, secret: map[string]bool{},
	}}
	for _, name := range spec.Secret {
		c.secret[name] = true
	}
	c.order = sortedKeys(spec.Objects)
	slices.SortStableFunc(c.order, func(a, b string) int { return strings.Compare(spec.Objects[a].Parent, spec.Objects[b].Parent) }) // "" first
	for _, kind := range c.order {
		c.where = "objects." + kind
		c.object(kind, spec.Objects[kind])
	}
	for _, name := range sortedKeys(spec.Calls) {
		c.where = "calls." + name
		c.call(name, spec.Calls[name])
	}
	return &c.program, errors.Join(c.errs...)
}

type compiler struct {
	program
	spec         *Spec
	calls, hooks *codec.Schema
	where        string // what is being compiled, for errors
	errs         []error
}

// fail notes a mistake. It returns a zero value of any type, to go on with.
func (c *compiler) fail(format string, args ...any) {
	c.errs = append(c.errs, fmt.Errorf(c.where+": "+format, args...))
}

func (c *compiler) object(kind string, spec Object) {
	md := c.message(spec.Message)
	if md == nil {
		c.fail("message: no method of plugins takes a %q", spec.Message)
		return
	}
	o := &object{
		kind: kind, typ: c.typeOf(md), parent: c.objects[spec.Parent],
		id: c.field(md, spec.ID), uid: c.field(md, spec.UID), namespace: c.field(md, spec.Namespace), name: c.field(md, spec.Name),
		labels: c.field(md, spec.Labels),
	}
	if asked := c.field(md, spec.Asked); asked != nil {
		o.asked = asked.leaf()
	}
	for _, name := range sortedKeys(spec.Inherit) {
		to, from := c.field(md, name), c.field(o.parent.typ.Descriptor(), spec.Inherit[name])
		if to != nil && from != nil {
			o.inherits = append(o.inherits, [2]protoreflect.FieldDescriptor{to.leaf(), from.leaf()})
		}
	}
	c.objects[kind] = o
}

// message returns a message that a plugin gets.
func (c *compiler) message(name string) protoreflect.MessageDescriptor {
	for _, m := range c.hooks.Methods() {
		if string(m.Input.Name()) == name {
			return m.Input
		}
	}
	return nil
}

// typeOf returns the generated type of a message of the hooks' schema.
func (c *compiler) typeOf(md protoreflect.MessageDescriptor) protoreflect.MessageType {
	t, err := protoregistry.GlobalTypes.FindMessageByName(md.FullName())
	if err != nil {
		c.fail("%w", err)
	}
	return t
}

// field resolves a path to a field. It is nil if text is empty, or after a mistake.
func (c *compiler) field(md protoreflect.MessageDescriptor, text string) fieldPath {
	if text == "" {
		return nil
	}
	if p := c.path(md, text); p != nil {
		return p.Fields()
	}
	return nil
}

// path resolves a path in a request or a reply. It is nil after a mistake.
func (c *compiler) path(md protoreflect.MessageDescriptor, text string) *rewrite.Path {
	p, err := rewrite.ParsePath(md, text)
	if err != nil {
		c.fail("%w", err)
	}
	return p
}

func (c *compiler) call(name string, spec Call) {
	m, o := methodNamed(c.calls, name), c.objects[spec.Makes+spec.About]
	if m == nil || o == nil {
		c.fail("want the name of a method, and makes or about with a kind of object")
		return
	}
	made := &call{method: m, name: name, object: o, ends: spec.Ends, makes: spec.Makes != ""}
	if made.makes {
		made.id = c.path(m.Output, spec.ID)
	} else {
		made.id = c.path(m.Input, spec.ID)
	}
	if made.makes && o.parent != nil {
		made.parent = c.path(m.Input, spec.Parent)
	}
	for _, to := range sortedKeys(spec.Fill) {
		made.fill = append(made.fill, fill{to: c.path(o.typ.Descriptor(), to), from: c.path(m.Input, spec.Fill[to])})
	}
	made.before, made.after = c.point(made, spec.Before), c.point(made, spec.After)
	if made.before != nil {
		c.leaves(made, &leaf{}, made.before.answer.Descriptor(), o.typ.Descriptor())
	}
	c.program.calls[m.Name] = made
}

func (c *compiler) point(of *call, name string) *point {
	if name == "" {
		return nil
	}
	m := methodNamed(c.hooks, name+"Hook")
	if m == nil || m.Input != of.object.typ.Descriptor() {
		c.fail("no plugin has a method %sHook that takes a %s", name, of.object.typ.Descriptor().Name())
		return nil
	}
	p := &point{name: name, method: m.Name, answer: c.typeOf(m.Output)}
	c.points[name] = p
	return p
}

// leaves adds to a call the fields inside the field in that an answer at the point before the call
// can change. answer and state are the messages in the field, in the answer and in the object.
func (c *compiler) leaves(of *call, in *leaf, answer, state protoreflect.MessageDescriptor) {
	spec := c.spec.Calls[of.name]
	for i := range answer.Fields().Len() {
		fd := answer.Fields().Get(i)
		name := string(fd.Name())
		rule, ruled := c.spec.Answers[string(answer.Name())][name]
		to := c.field(state, name)
		switch {
		case !ruled:
			c.fail("answers: %s.%s has no rule", answer.Name(), name)
			continue
		case to == nil || in.state == nil && slices.Contains(spec.Unheeded, name):
			continue
		}
		l := &leaf{
			answer: append(slices.Clip(in.answer), fd), state: append(slices.Clip(in.state), to...),
			rule: rule, secret: in.secret || c.secret[name],
		}
		if in.to != nil {
			l.to = c.path(of.method.Input, in.to.String()+"."+name)
		} else if path, filled := spec.Fill[name]; filled && in.state == nil {
			l.to = c.path(of.method.Input, path)
		}
		if rule.Kind == "fields" {
			c.leaves(of, l, fd.Message(), to.leaf().Message())
		} else {
			of.leaves = append(of.leaves, l)
		}
	}
}

// methodNamed finds a method by its name without package and service.
func methodNamed(s *codec.Schema, name string) *codec.Method {
	all := s.Methods()
	if i := slices.IndexFunc(all, func(m *codec.Method) bool { return strings.HasSuffix(m.Name, "/"+name) }); i >= 0 {
		return all[i]
	}
	return nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
