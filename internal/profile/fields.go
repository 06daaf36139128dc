package profile

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/rewrite"
)

// Fields has the kinds that a profile gives to the fields of an API. It is immutable.
type Fields struct {
	kinds   []string // :: class → kind
	all     *rewrite.Messages
	classes *rewrite.Classes
}

// FieldsOf returns the kinds that p gives to the fields of s. The error is a mistake in the profile.
func FieldsOf(p *Profile, s *codec.Schema) (*Fields, error) {
	f := &Fields{kinds: []string{""}, all: MessagesOf(p.Describes(s))}
	byName := map[string]rewrite.Class{}
	for _, field := range sortedKeys(p.Fields) {
		if kind := p.Fields[field]; byName[kind] == 0 {
			byName[kind] = rewrite.Class(len(f.kinds))
			f.kinds = append(f.kinds, kind)
		}
	}
	var err error
	if f.classes, err = p.Classify(f.all, byName); err != nil {
		return nil, err
	}
	return f, nil
}

// Kind returns the kind of names that a field holds, or its class of edits. It is empty for all
// other fields.
func (f *Fields) Kind(fd protoreflect.FieldDescriptor) string { return f.kinds[f.classes.Of(fd)] }

// Unclassified lists the string and bytes fields to which the profile gives no kind and which it
// does not call harmless. An id among them would leak from one backend to another.
func (f *Fields) Unclassified() []protoreflect.FieldDescriptor {
	var found []protoreflect.FieldDescriptor
	for _, md := range f.all.All() {
		if md.IsMapEntry() {
			continue // the field that holds the map counts instead
		}
		for i := range md.Fields().Len() {
			if fd := md.Fields().Get(i); holdsText(fd) && !f.classes.Named(fd) {
				found = append(found, fd)
			}
		}
	}
	return found
}

func holdsText(fd protoreflect.FieldDescriptor) bool {
	if fd.IsMap() {
		return holdsText(fd.MapKey()) || holdsText(fd.MapValue())
	}
	return fd.Kind() == protoreflect.StringKind || fd.Kind() == protoreflect.BytesKind
}

// Describes returns the methods of the schema that the profile describes: those of the newest
// version.
func (p *Profile) Describes(s *codec.Schema) []*codec.Method {
	var methods []*codec.Method
	if len(p.Versions) == 0 {
		return nil
	}
	for _, m := range s.Methods() {
		if strings.HasPrefix(m.Name, "/"+p.Versions[0].Package+".") {
			methods = append(methods, m)
		}
	}
	return methods
}

// MessagesOf returns the messages that go in and out of methods, with those inside them.
func MessagesOf(methods []*codec.Method) *rewrite.Messages {
	var roots []protoreflect.MessageDescriptor
	for _, m := range methods {
		roots = append(roots, m.Input, m.Output)
	}
	return rewrite.Reachable(roots)
}

// Misfits returns every mistake in the profile's rules for the fields and methods of a schema that
// can be found without compiling the profile.
func (p *Profile) Misfits(s *codec.Schema) error {
	methods := p.Describes(s)
	if len(methods) == 0 {
		return nil
	}
	byName := map[string]rewrite.Class{}
	for _, name := range append(sortedKeys(p.Names), sortedKeys(p.Edits)...) {
		byName[name] = rewrite.Class(len(byName) + 1)
	}
	all := MessagesOf(methods)
	_, err := p.Classify(all, byName)
	_, aboutErr := p.classifyAbout(all)
	_, secretErr := p.Secrets(s)
	return p.Located(errors.Join(err, aboutErr, secretErr, p.Unmatched(methods), p.Known.Check(s, p.Versions[0].Package)))
}

// Classify returns the classes that the profile gives to fields. byName has the class of each of
// its kinds and edits. The error names every mistake; with it, Classify returns the classes of the
// valid rules.
func (p *Profile) Classify(all *rewrite.Messages, byName map[string]rewrite.Class) (*rewrite.Classes, error) {
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
		return classes, p.ruleErrors(err)
	}
	return classes, nil
}

// ruleErrors puts the section of a rule before each mistake in it.
func (p *Profile) ruleErrors(err error) error {
	return eachMistake(err, func(one error) error {
		var rule *rewrite.RuleError
		if !errors.As(one, &rule) {
			return one
		}
		return fmt.Errorf("%s%w", p.section(rule.Field), one)
	})
}

// section returns the section that has the rule for a field.
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

// IsVolatile reports whether a field is one of those under volatile.
func (p *Profile) IsVolatile(fd protoreflect.FieldDescriptor) bool {
	if !slices.ContainsFunc(p.Versions, func(v Version) bool { return v.Package == string(fd.ParentFile().Package()) }) {
		return false
	}
	number := fd.Message() == nil && fd.Kind() != protoreflect.StringKind && !fd.IsList()
	return slices.ContainsFunc(p.Volatile, func(pattern string) bool {
		message, field, _ := strings.Cut(pattern, ".")
		return Match(message, string(fd.Parent().Name())) && (field == "*" && number || field != "*" && Match(field, string(fd.Name())))
	})
}

// Separator returns the text between the name of a backend and its ids in front, such as "__". It is
// that of the kinds of names whose bare form is the primary's, and empty if there is no such kind.
func (p *Profile) Separator() string {
	for _, kind := range sortedKeys(p.Names) {
		form := p.Names[kind]
		if sep, err := form.Separator(); err == nil && form.Bare == "primary" {
			return sep
		}
	}
	return ""
}

// Bare returns a front id without the prefix of its backend, or "" for an id without a prefix.
func (p *Profile) Bare(front string) string {
	sep := p.Separator()
	if sep == "" {
		return ""
	}
	_, bare, _ := strings.Cut(front, sep)
	return bare
}

// AllVersions returns a schema that has the methods of s in all versions of the profile, for
// printing: older versions have the messages of the newest.
func (p *Profile) AllVersions(s *codec.Schema) *codec.Schema {
	for _, v := range p.Versions[1:] {
		s = s.Alias(p.Versions[0].Package, v.Package)
	}
	return s
}

// PackagesOf says, for an error message, in which packages a schema has services.
func PackagesOf(s *codec.Schema) string {
	var names []string
	for _, m := range s.Methods() {
		if name := PackageOf(m.Name); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ", nor in any other"
	}
	return "; it has " + strings.Join(names, ", ")
}
