package profile

import (
	"cmp"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/inventory"
	"github.com/criproxy/criproxy/rewrite"
)

// Fit returns the profile without its rules for fields and methods that the schema does not have,
// and lists these rules. So a profile that was written for one version of an API also serves an
// older one, and a newer one that has dropped something. A newer version may also have fields in
// joined replies for which the profile has no winner: the director then assumes that the primary
// wins.
func (p *Profile) Fit(s *codec.Schema) (*Profile, []string) {
	methods := p.Describes(s)
	f := &fitting{p: p, schema: s, methods: methods, messages: MessagesOf(methods)}
	fit := *p
	fit.fitted = true
	fit.Fields = kept(p.Fields, func(field, _ string) bool { return f.has("fields.", field) })
	fit.Names = map[string]NameForm{}
	for _, kind := range sortedKeys(p.Names) {
		form := p.Names[kind]
		form.Empty = slices.DeleteFunc(slices.Clone(form.Empty), func(field string) bool { return !f.has("names."+kind+".empty: ", field) })
		fit.Names[kind] = form
	}
	fit.Harmless = map[string][]string{}
	for _, message := range sortedKeys(p.Harmless) {
		for _, field := range p.Harmless[message] {
			if f.has("harmless.", message+"."+field) {
				fit.Harmless[message] = append(fit.Harmless[message], field)
			}
		}
	}
	fit.Methods = map[string]MethodForm{}
	for _, key := range sortedKeys(p.Methods) {
		if rest := f.key("methods.", key); rest != "" {
			fit.Methods[rest] = f.method(rest, p.Methods[key])
		}
	}
	fit.Written = f.written(p.Written)
	fit.Quiet = map[string]int{}
	for _, key := range sortedKeys(p.Quiet) {
		if rest := f.key("quiet.", key); rest != "" {
			fit.Quiet[rest] = p.Quiet[key]
		}
	}
	fit.Secret = nil
	for _, secret := range p.Secret {
		if _, err := (&Profile{Versions: p.Versions, Secret: []string{secret}}).Secrets(s); err != nil {
			f.left = append(f.left, "secret."+secret)
			continue
		}
		fit.Secret = append(fit.Secret, secret)
	}
	fit.Known = f.known(p.Known)
	return &fit, f.left
}

// kept returns the entries of m for which keep returns true. It calls keep in the order of the keys.
func kept[V any](m map[string]V, keep func(key string, value V) bool) map[string]V {
	fit := map[string]V{}
	for _, key := range sortedKeys(m) {
		if keep(key, m[key]) {
			fit[key] = m[key]
		}
	}
	return fit
}

// Fitted reports whether [Profile.Fit] has returned the profile, or the one from which it was
// extended.
func (p *Profile) Fitted() bool { return p.fitted }

// fitting collects the rules of a profile for what the schema does not have.
type fitting struct {
	p        *Profile
	schema   *codec.Schema
	methods  []*codec.Method
	messages *rewrite.Messages
	left     []string
}

func (f *fitting) has(section, field string) bool {
	if _, err := f.messages.Classify([]rewrite.Rule{{Field: field, Class: 1}}); err != nil {
		f.left = append(f.left, section+field)
		return false
	}
	return true
}

// matching returns the methods that match a name or pattern.
func (f *fitting) matching(one string) []*codec.Method {
	return slices.DeleteFunc(slices.Clone(f.methods), func(m *codec.Method) bool { _, ok := rank(one, m.Name); return !ok })
}

// key returns the key of methods without the names that the schema does not have; empty if no
// method is left. Patterns stay: methods of a newer version may match.
func (f *fitting) key(section, key string) string {
	var rest []string
	any := false
	for _, one := range alternatives(key) {
		matches := len(f.matching(one)) > 0
		any = any || matches
		if matches || strings.Contains(one, "*") {
			rest = append(rest, one)
		} else {
			f.left = append(f.left, section+one)
		}
	}
	if !any && len(rest) > 0 {
		f.left = append(f.left, section+strings.Join(rest, "|"))
	}
	if !any {
		return ""
	}
	return strings.Join(rest, "|")
}

// method returns form without the paths that its methods do not have.
func (f *fitting) method(key string, form MethodForm) MethodForm {
	var methods []*codec.Method
	for _, one := range alternatives(key) {
		methods = append(methods, f.matching(one)...)
	}
	leads := func(path string, from func(*codec.Method) protoreflect.MessageDescriptor) bool {
		for _, m := range methods {
			if _, err := rewrite.ParsePath(from(m), path); err != nil {
				f.left = append(f.left, "methods."+key+": "+path)
				return false
			}
		}
		return true
	}
	input := func(m *codec.Method) protoreflect.MessageDescriptor { return m.Input }
	form.Choose = slices.DeleteFunc(slices.Clone(form.Choose), func(c ChooseForm) bool {
		path := c.Path
		if c.Kind == "known" {
			_, path, _ = strings.Cut(path, "=")
			path, _, _ = strings.Cut(path, " without ")
		}
		path = strings.TrimSpace(path)
		return !strings.HasPrefix(path, "metadata[") && !leads(path, input)
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

// written returns form without the messages and paths that the schema does not have.
func (f *fitting) written(form WrittenForm) WrittenForm {
	fit := WrittenForm{map[string]NotedForm{}, map[string]NotedForm{}}
	put := func(to map[string]NotedForm, section, key string, md protoreflect.MessageDescriptor, n NotedForm) {
		if md == nil {
			f.left = append(f.left, section+key)
			return
		}
		lacks := func(path string) bool {
			_, err := rewrite.ParsePath(md, path)
			if err != nil {
				f.left = append(f.left, section+key+": "+path)
			}
			return err != nil
		}
		n.Names = slices.DeleteFunc(slices.Clone(n.Names), lacks)
		if !lacks(n.Note) {
			to[key] = n
		}
	}
	for _, name := range sortedKeys(form.Requests) {
		var md protoreflect.MessageDescriptor
		if m := f.matching(name); len(m) > 0 {
			md = m[0].Input
		}
		put(fit.Requests, "written.requests.", name, md, form.Requests[name])
	}
	for _, message := range sortedKeys(form.Replies) {
		var md protoreflect.MessageDescriptor
		for _, one := range f.messages.All() {
			if string(one.Name()) == message {
				md = one
			}
		}
		put(fit.Replies, "written.replies.", message, md, form.Replies[message])
	}
	return fit
}

// known returns spec without the methods that the schema does not have.
func (f *fitting) known(spec inventory.Spec) inventory.Spec {
	lacks := func(name string) bool {
		if name == "" || len(f.matching(name)) > 0 {
			return false
		}
		f.left = append(f.left, "known."+name)
		return true
	}
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
		for _, at := range lacking {
			f.left = append(f.left, "known."+cmp.Or(l.List, l.Stream)+".draft."+at)
		}
		l.Draft = kept(l.Draft, func(at, _ string) bool { return !slices.Contains(lacking, at) })
		fit.Lists = append(fit.Lists, l)
	}
	for _, r := range spec.Replies {
		if !lacks(r.Method) {
			fit.Replies = append(fit.Replies, r)
		}
	}
	fit.Stamps = slices.DeleteFunc(slices.Clone(spec.Stamps), func(stamp string) bool {
		_, err := f.messages.Classify([]rewrite.Rule{{Field: stamp, Class: 1}})
		return err != nil // not worth a word: a message without a stamp needs no rule for it
	})
	return fit
}
