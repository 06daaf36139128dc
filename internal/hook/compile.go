package hook

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

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
	kind                     string
	typ                      protoreflect.MessageType
	id, uid, namespace, name fieldPath // nil if the object has none
	labels                   fieldPath
	asked                    protoreflect.FieldDescriptor // nil if the object has none
	parent                   *object
	inheritFrom, inheritTo   []protoreflect.FieldDescriptor // pairs of fields, at the same index
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
	call   *call
}

// compile resolves spec. Its error names every mistake.
func compile(spec *Spec, calls, hooks *codec.Schema) (*program, error) {
	c := &compiler{spec: spec, hooks: hooks, program: program{
		objects: map[string]*object{}, calls: map[string]*call{}, points: map[string]*point{}, secret: map[string]bool{},
	}}
	for _, name := range spec.Secret {
		c.secret[name] = true
	}
	for _, kind := range sortedKeys(spec.Objects) {
		c.fail("objects."+kind, c.object(kind))
	}
	for _, kind := range sortedKeys(spec.Objects) {
		c.fail("objects."+kind, c.inherit(kind))
	}
	if len(c.errs) > 0 {
		return nil, errors.Join(c.errs...) // further errors would follow from these
	}
	c.order = sortedKeys(spec.Objects)
	slices.SortStableFunc(c.order, func(a, b string) int { return strings.Compare(spec.Objects[a].Parent, spec.Objects[b].Parent) }) // "" first
	for _, name := range sortedKeys(spec.Calls) {
		c.fail("calls."+name, c.call(name, calls))
	}
	return &c.program, errors.Join(c.errs...)
}

type compiler struct {
	program
	spec  *Spec
	hooks *codec.Schema
	errs  []error
}

func (c *compiler) fail(where string, err error) {
	if err != nil {
		c.errs = append(c.errs, fmt.Errorf("%s: %w", where, err))
	}
}

func (c *compiler) object(kind string) error {
	o := c.spec.Objects[kind]
	md := c.message(o.Message)
	if md == nil {
		return fmt.Errorf("message: no method of plugins takes a %q", o.Message)
	}
	made := &object{kind: kind, typ: typeOf(md)}
	c.objects[kind] = made
	for _, p := range []struct {
		to    *fieldPath
		text  string
		isMap bool
	}{{&made.id, o.ID, false}, {&made.uid, o.UID, false}, {&made.namespace, o.Namespace, false}, {&made.name, o.Name, false}, {&made.labels, o.Labels, true}} {
		if p.text == "" {
			continue
		}
		path, err := parseFieldPath(md, p.text)
		if err != nil {
			return err
		}
		if fd := path.leaf(); p.isMap != fd.IsMap() || p.isMap && !isTextMap(fd) || !p.isMap && (fd.IsList() || fd.Kind() != protoreflect.StringKind) {
			return fmt.Errorf("%s: want a field that is a string, or for labels a map of strings", p.text)
		}
		*p.to = path
	}
	if o.Asked != "" {
		fd, err := fieldOf(md, o.Asked)
		if err != nil {
			return fmt.Errorf("asked: %w", err)
		}
		if fd.Message() == nil || fd.IsList() || fd.IsMap() {
			return fmt.Errorf("asked: %s is no message", o.Asked)
		}
		made.asked = fd
	}
	return nil
}

func (c *compiler) inherit(kind string) error {
	o, spec := c.objects[kind], c.spec.Objects[kind]
	if spec.Parent == "" || o == nil {
		return nil
	}
	if o.parent = c.objects[spec.Parent]; o.parent == nil {
		return fmt.Errorf("parent: there is no kind %q", spec.Parent)
	}
	if c.spec.Objects[spec.Parent].Parent != "" {
		return fmt.Errorf("parent: %s lies in something itself, which is one level too many", spec.Parent)
	}
	for _, name := range sortedKeys(spec.Inherit) {
		to, err := fieldOf(o.typ.Descriptor(), name)
		if err != nil {
			return fmt.Errorf("inherit: %w", err)
		}
		from, err := fieldOf(o.parent.typ.Descriptor(), spec.Inherit[name])
		if err != nil {
			return fmt.Errorf("inherit: %w", err)
		}
		if to.Kind() != from.Kind() || to.Cardinality() != from.Cardinality() || to.IsMap() != from.IsMap() || !to.IsMap() && to.Message() != from.Message() {
			return fmt.Errorf("inherit: %s and %s are of different types", name, spec.Inherit[name])
		}
		if to.IsList() || to.IsMap() && !isTextMap(to) {
			return fmt.Errorf("inherit: %s is neither one value nor a map of strings", name)
		}
		o.inheritTo, o.inheritFrom = append(o.inheritTo, to), append(o.inheritFrom, from)
	}
	return nil
}

// message returns a message that a plugin gets or answers.
func (c *compiler) message(name string) protoreflect.MessageDescriptor {
	for _, m := range c.hooks.Methods() {
		for _, md := range []protoreflect.MessageDescriptor{m.Input, m.Output} {
			if string(md.Name()) == name {
				return md
			}
		}
	}
	return nil
}

func (c *compiler) call(name string, calls *codec.Schema) error {
	spec := c.spec.Calls[name]
	m := methodNamed(calls, name)
	if m == nil || !m.Unary() {
		return fmt.Errorf("there is no unary method of that name")
	}
	made := &call{method: m, name: name, ends: spec.Ends, makes: spec.Makes != ""}
	kind := spec.Makes + spec.About
	if made.object = c.objects[kind]; made.object == nil {
		return fmt.Errorf("want makes or about with a kind of object; %q is none", kind)
	}
	in := m.Input
	if made.makes {
		in = m.Output
	}
	var err error
	if made.id, err = rewrite.ParseTextPath(in, spec.ID); err != nil {
		return fmt.Errorf("id: %w", err)
	}
	if made.makes && made.object.parent != nil {
		if made.parent, err = rewrite.ParseTextPath(m.Input, spec.Parent); err != nil {
			return fmt.Errorf("parent: %w", err)
		}
	}
	if made.fill, err = compileProjection(made.object.typ.Descriptor(), m.Input, spec.Fill); err != nil {
		return fmt.Errorf("fill: %w", err)
	}
	if made.before, err = c.point(made, spec.Before); err != nil {
		return fmt.Errorf("before: %w", err)
	}
	if made.after, err = c.point(made, spec.After); err != nil {
		return fmt.Errorf("after: %w", err)
	}
	if made.before != nil {
		if made.leaves, err = c.leaves(made, spec); err != nil {
			return fmt.Errorf("answers: %w", err)
		}
	}
	c.calls[m.Name] = made
	return nil
}

func (c *compiler) point(of *call, name string) (*point, error) {
	if name == "" {
		return nil, nil
	}
	m := methodNamed(c.hooks, name+"Hook")
	switch {
	case m == nil:
		return nil, fmt.Errorf("no plugin has a method %sHook", name)
	case m.Input != of.object.typ.Descriptor():
		return nil, fmt.Errorf("%s takes a %s, not a %s", m.Name, m.Input.Name(), of.object.typ.Descriptor().Name())
	case c.points[name] != nil:
		return nil, fmt.Errorf("%s is a point of %s already", name, c.points[name].call.name)
	}
	p := &point{name: name, method: m.Name, answer: typeOf(m.Output), call: of}
	c.points[name] = p
	return p, nil
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
