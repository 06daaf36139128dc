package director

import (
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/rewrite"
)

// class is what the content of a field means: a kind of name, or work for an edit.
type class struct {
	name   string
	naming *naming // nil for an edit
	edits  []Edit  // by backend; nil for a name
}

func (t *table) compileClasses(cfg Config) (map[string]rewrite.Class, error) {
	byName := map[string]rewrite.Class{}
	add := func(c *class) {
		byName[c.name] = rewrite.Class(len(t.classes))
		t.classes = append(t.classes, c)
	}
	var errs []error
	for _, kind := range sortedKeys(cfg.Profile.Names) {
		form := cfg.Profile.Names[kind]
		if form.Map != "" {
			n, err := mapped(form.Map, cfg.Backends)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			add(&class{name: kind, naming: n})
			continue
		}
		sep, err := separator(form.Front)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if cfg.NativeNames && form.Bare == "primary" {
			add(&class{name: kind, naming: native(kind, cfg.Backends, cfg.Panicked)})
			continue
		}
		add(&class{name: kind, naming: prefixed(kind, sep, form.Bare == "primary", cfg.Backends, compileAsker(kind, cfg.Profile, cfg.Schema))})
	}
	for _, name := range sortedKeys(cfg.Profile.Edits) {
		make, ok := cfg.Edits[cfg.Profile.Edits[name].Replies]
		if !ok {
			errs = append(errs, fmt.Errorf("edits.%s.replies: there is no code called %q", name, cfg.Profile.Edits[name].Replies))
			continue
		}
		c := &class{name: name}
		for i, b := range cfg.Backends {
			c.edits = append(c.edits, make(EditContext{b, cfg.Backends, i == 0, func(dst []byte, kind string, name []byte) []byte {
				return t.classes[byName[kind]].naming.toFront(dst, name, i)
			}}))
		}
		add(c)
	}
	return byName, errors.Join(errs...)
}

// messages are those that go in and out of methods, and what they are made of.
func messages(methods []*codec.Method) *rewrite.Messages {
	var roots []protoreflect.MessageDescriptor
	for _, m := range methods {
		roots = append(roots, m.Input, m.Output)
	}
	return rewrite.Reachable(roots)
}

func classify(p *Profile, all *rewrite.Messages, byName map[string]rewrite.Class) (*rewrite.Classes, error) {
	var rules []rewrite.Rule
	for _, field := range sortedKeys(p.Fields) {
		rules = append(rules, rewrite.Rule{Field: field, Class: byName[p.Fields[field]]})
	}
	for _, kind := range sortedKeys(p.Names) {
		for _, field := range p.Names[kind].Empty {
			rules = append(rules, rewrite.Rule{Field: field, Class: byName[kind], Absent: true})
		}
	}
	for _, message := range sortedKeys(p.Harmless) {
		for _, field := range p.Harmless[message] {
			rules = append(rules, rewrite.Rule{Field: message + "." + field})
		}
	}
	classes, err := all.Classify(rules)
	if err != nil {
		return nil, p.ruleErrors(err)
	}
	return classes, nil
}

// ruleErrors returns the mistakes of rules with the sections they stand in.
func (p *Profile) ruleErrors(err error) error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return err
	}
	var errs []error
	for _, one := range joined.Unwrap() {
		var rule *rewrite.RuleError
		if !errors.As(one, &rule) {
			errs = append(errs, one)
			continue
		}
		errs = append(errs, fmt.Errorf("%s%w", p.section(rule.Field), one))
	}
	return errors.Join(errs...)
}

// section returns where the rule for a field stands.
func (p *Profile) section(field string) string {
	if _, named := p.Fields[field]; named {
		return "fields."
	}
	for kind, form := range p.Names {
		if slices.Contains(form.Empty, field) {
			return "names." + kind + ".empty: "
		}
	}
	return "harmless."
}
