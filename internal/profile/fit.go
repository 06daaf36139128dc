package profile

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/inventory"
	"github.com/criproxy/criproxy/rewrite"
)

// Fit returns the profile without its rules for fields and methods that the schema does not have.
// So a profile that was written for one version of an API also serves an
// older one, and a newer one that has dropped something. A newer version may also have fields in
// joined replies for which the profile has no winner: the director then assumes that the primary
// wins.
func (p *Profile) Fit(s *codec.Schema) *Profile {
	methods := p.Describes(s)
	f := &fitting{schema: s, methods: methods, messages: MessagesOf(methods)}
	fit := *p
	fit.fitted = true
	fit.Fields = kept(p.Fields, func(field, _ string) bool { return f.has(field) })
	fit.Names = map[string]NameForm{}
	for kind, form := range p.Names {
		form.Empty = those(form.Empty, f.has)
		fit.Names[kind] = form
	}
	fit.Harmless = map[string][]string{}
	for message, fields := range p.Harmless {
		fit.Harmless[message] = those(fields, func(field string) bool { return f.has(message + "." + field) })
	}
	fit.Methods = map[string]MethodForm{}
	for key, form := range p.Methods {
		if rest := f.key(key); rest != "" {
			fit.Methods[rest] = f.method(rest, form)
		}
	}
	fit.Written = f.written(p.Written)
	fit.Quiet = map[string]int{}
	for key, level := range p.Quiet {
		if rest := f.key(key); rest != "" {
			fit.Quiet[rest] = level
		}
	}
	fit.Secret = those(p.Secret, func(secret string) bool {
		_, err := (&Profile{Versions: p.Versions, Secret: []string{secret}}).Secrets(s)
		return err == nil
	})
	fit.Known = f.known(p.Known)
	return &fit
}

// kept returns the entries of m for which keep returns true.
func kept[V any](m map[string]V, keep func(key string, value V) bool) map[string]V {
	fit := maps.Clone(m)
	maps.DeleteFunc(fit, func(key string, value V) bool { return !keep(key, value) })
	return fit
}

// those returns the items for which keep returns true.
func those[T any](all []T, keep func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(all), func(one T) bool { return !keep(one) })
}

// Fitted reports whether [Profile.Fit] has returned the profile, or the one from which it was
// extended.
func (p *Profile) Fitted() bool { return p.fitted }

// fitting says what a schema has.
type fitting struct {
	schema   *codec.Schema
	methods  []*codec.Method
	messages *rewrite.Messages
}

func (f *fitting) has(field string) bool {
	_, err := f.messages.Classify([]rewrite.Rule{{Field: field, Class: 1}})
	return err == nil
}

// matching returns the methods that match a name or pattern.
func (f *fitting) matching(one string) []*codec.Method {
	return those(f.methods, func(m *codec.Method) bool { _, ok := rank(one, m.Name); return ok })
}

// key returns the key of methods without the names that the schema does not have; empty if no
// method is left. Patterns stay: methods of a newer version may match.
func (f *fitting) key(key string) string {
	has := func(one string) bool { return len(f.matching(one)) > 0 }
	if !slices.ContainsFunc(alternatives(key), has) {
		return ""
	}
	return strings.Join(those(alternatives(key), func(one string) bool { return has(one) || strings.Contains(one, "*") }), "|")
}

// method returns form without the paths that its methods do not have.
func (f *fitting) method(key string, form MethodForm) MethodForm {
	var methods []*codec.Method
	for _, one := range alternatives(key) {
		methods = append(methods, f.matching(one)...)
	}
	leads := func(path string, from func(*codec.Method) protoreflect.MessageDescriptor) bool {
		return !slices.ContainsFunc(methods, func(m *codec.Method) bool { return !hasPath(from(m), path) })
	}
	input := func(m *codec.Method) protoreflect.MessageDescriptor { return m.Input }
	form.Choose = those(form.Choose, func(c ChooseForm) bool {
		path := c.Path
		if c.Kind == "known" {
			_, path, _ = strings.Cut(path, "=")
			path, _, _ = strings.Cut(path, " without ")
		}
		path = strings.TrimSpace(path)
		return strings.HasPrefix(path, "metadata[") || leads(path, input)
	})
	if form.First != "" && !leads(form.First, func(m *codec.Method) protoreflect.MessageDescriptor { return m.Output }) {
		form.First, form.Unsure = "", ""
	}
	if form.Unsure != "" && !leads(form.Unsure, input) {
		form.Unsure = ""
	}
	if form.New != nil && form.New.Unless != "" && !leads(form.New.Unless, input) {
		form.New = nil // without Unless it would apply to calls to which it must not
	}
	both := func(one, other string) bool { return leads(one, input) && leads(other, input) }
	form.Withhold, form.Tells = kept(form.Withhold, both), kept(form.Tells, both)
	return form
}

// hasPath reports whether a message has the field at a path.
func hasPath(md protoreflect.MessageDescriptor, path string) bool {
	_, err := rewrite.ParsePath(md, path)
	return err == nil
}

// written returns form without the messages and paths that the schema does not have.
func (f *fitting) written(form WrittenForm) WrittenForm {
	fit := WrittenForm{map[string]NotedForm{}, map[string]NotedForm{}}
	put := func(to map[string]NotedForm, key string, md protoreflect.MessageDescriptor, n NotedForm) {
		if hasPath(md, n.Note) {
			n.Names = those(n.Names, func(path string) bool { return hasPath(md, path) })
			to[key] = n
		}
	}
	for name, n := range form.Requests {
		for _, m := range f.matching(name) {
			put(fit.Requests, name, m.Input, n)
		}
	}
	for message, n := range form.Replies {
		for _, md := range f.messages.All() {
			if string(md.Name()) == message {
				put(fit.Replies, message, md, n)
			}
		}
	}
	return fit
}

// known returns spec without the methods that the schema does not have.
func (f *fitting) known(spec inventory.Spec) inventory.Spec {
	lacks := func(name string) bool { return name != "" && len(f.matching(name)) == 0 }
	var fit inventory.Spec
	for _, l := range spec.Lists {
		if lacks(l.List) {
			l.List = ""
		}
		if lacks(l.Stream) {
			l.Stream = ""
		}
		if l.List == "" && l.Stream == "" {
			continue
		}
		if lacks(l.Status.Method) {
			l.Status = inventory.Status{}
		}
		if lacks(l.PartOf.List) {
			l.PartOf = inventory.PartOf{}
		}
		l.Created = kept(l.Created, func(method, _ string) bool { return !lacks(method) })
		lacking, _ := l.CheckDraft(f.schema)
		l.Draft = kept(l.Draft, func(at, _ string) bool { return !slices.Contains(lacking, at) })
		fit.Lists = append(fit.Lists, l)
	}
	fit.Replies = those(spec.Replies, func(r inventory.Reply) bool { return !lacks(r.Method) })
	fit.Stamps = those(spec.Stamps, f.has)
	return fit
}
