package hook

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/rewrite"
)

// leaves lists the fields that an answer at the point before a call can change.
func (c *compiler) leaves(of *call, spec Call) ([]*leaf, error) {
	answer, state := of.before.answer.Descriptor(), of.object.typ.Descriptor()
	rules, err := c.rules(answer)
	if err != nil {
		return nil, err
	}
	for _, name := range spec.Unheeded {
		if _, err := fieldOf(answer, name); err != nil {
			return nil, fmt.Errorf("unheeded: %w", err)
		}
	}
	var all []*leaf
	for i := range answer.Fields().Len() {
		fd := answer.Fields().Get(i)
		name := string(fd.Name())
		if slices.Contains(spec.Unheeded, name) {
			continue
		}
		to, err := fieldOf(state, name)
		if err != nil {
			return nil, err
		}
		l := leaf{answer: fieldPath{fd}, state: fieldPath{to}, rule: rules[name], secret: c.secret[name]}
		if path, ok := spec.Fill[name]; ok {
			if l.to, err = rewrite.ParsePath(of.method.Input, path); err != nil {
				return nil, err
			}
		}
		if l.rule.Kind != "fields" {
			all = append(all, &l)
			continue
		}
		inside, err := c.within(of, &l)
		if err != nil {
			return nil, err
		}
		all = append(all, inside...)
	}
	for _, l := range all {
		if err := l.check(); err != nil {
			return nil, fmt.Errorf("%s: %w", l.answer, err)
		}
	}
	return all, nil
}

// within lists the leaves inside a message field, whose type the answer and the object share.
func (c *compiler) within(of *call, l *leaf) ([]*leaf, error) {
	md := l.answer.leaf().Message()
	if md == nil || md != l.state.leaf().Message() {
		return nil, fmt.Errorf("%s: has the rule \"fields\", but is not the same message in the answer as in what plugins get", l.answer)
	}
	rules, err := c.rules(md)
	if err != nil {
		return nil, err
	}
	var all []*leaf
	for i := range md.Fields().Len() {
		fd := md.Fields().Get(i)
		name := string(fd.Name())
		inner := &leaf{
			answer: fieldPath{l.answer.leaf(), fd}, state: fieldPath{l.state.leaf(), fd},
			rule: rules[name], secret: l.secret || c.secret[name],
		}
		if l.to != nil {
			if inner.to, err = rewrite.ParsePath(of.method.Input, l.to.String()+"."+name); err != nil {
				return nil, err
			}
		}
		all = append(all, inner)
	}
	return all, nil
}

// rules returns the rules for md. Each field must have a rule, and each rule a field.
func (c *compiler) rules(md protoreflect.MessageDescriptor) (map[string]Rule, error) {
	rules := c.spec.Answers[string(md.Name())]
	for i := range md.Fields().Len() {
		if name := md.Fields().Get(i).Name(); rules[string(name)].Kind == "" {
			return nil, fmt.Errorf("%s.%s has no rule", md.Name(), name)
		}
	}
	for name := range rules {
		if _, err := fieldOf(md, name); err != nil {
			return nil, err
		}
	}
	return rules, nil
}

// check returns an error if the rule is not for a field of this type, or if the request cannot hold
// the field.
func (l *leaf) check() error {
	a, s := l.answer.leaf(), l.state.leaf()
	if a.Kind() != s.Kind() || a.Cardinality() != s.Cardinality() || a.IsMap() != s.IsMap() {
		return fmt.Errorf("has another type in the answer than in what plugins get")
	}
	fits := false
	switch l.rule.Kind {
	case "positive", "nonzero":
		fits = isVarint(a) && !a.IsList()
	case "nonempty", "any":
		fits = a.Kind() == protoreflect.StringKind && !a.IsList()
	case "merge":
		fits = isTextMap(a)
	case "replace":
		fits = isTextMap(a) || a.IsList() && a.Message() != nil
	}
	if !fits {
		return fmt.Errorf("the rule %s is not for a field of this type", l.rule.Kind)
	}
	if l.to == nil {
		return nil
	}
	kind, _, err := compileFill(s, l.to.Leaf())
	if err != nil {
		return fmt.Errorf("cannot be put into %s: %w", l.to, err)
	}
	if kind == fillList {
		return sameNumbers(a.Message(), l.to.Leaf().Message())
	}
	return nil
}

// sameNumbers returns an error unless b has all fields of a, with the same numbers and kinds.
func sameNumbers(a, b protoreflect.MessageDescriptor) error {
	for i := range a.Fields().Len() {
		fd := a.Fields().Get(i)
		if other := b.Fields().ByNumber(fd.Number()); other == nil || other.Name() != fd.Name() || other.Kind() != fd.Kind() {
			return fmt.Errorf("%s has no field %d that is %s", b.FullName(), fd.Number(), fd.Name())
		}
	}
	return nil
}
