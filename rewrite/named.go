package rewrite

import (
	"iter"
	"path"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// Messages are the messages of an API, which rules name. They are immutable.
//
// Profiles have some hundred rules, which are looked up several times when a process
// starts: most name a message or a field, and need no comparison with each.
type Messages struct {
	all  []protoreflect.MessageDescriptor
	with map[string][]protoreflect.MessageDescriptor // :: name, with any part of its package → messages
}

// Reachable returns roots and every message that a field of theirs leads to.
func Reachable(roots []protoreflect.MessageDescriptor) *Messages {
	m := &Messages{with: map[string][]protoreflect.MessageDescriptor{}}
	seen := map[protoreflect.FullName]bool{}
	var visit func(md protoreflect.MessageDescriptor)
	visit = func(md protoreflect.MessageDescriptor) {
		if seen[md.FullName()] {
			return
		}
		seen[md.FullName()] = true
		m.all = append(m.all, md)
		for i := range md.Fields().Len() {
			if sub := md.Fields().Get(i).Message(); sub != nil {
				visit(sub)
			}
		}
	}
	for _, md := range roots {
		visit(md)
	}
	for _, md := range m.all {
		if md.IsMapEntry() {
			continue // the map is the field
		}
		for name, more := string(md.FullName()), true; more; _, name, more = strings.Cut(name, ".") {
			m.with[name] = append(m.with[name], md)
		}
	}
	return m
}

// All returns the messages, map entries included, each once, in the order in which they
// are met. It is not to be changed.
func (m *Messages) All() []protoreflect.MessageDescriptor { return m.all }

// named returns the messages called name, which may be a pattern, with or without
// their packages.
func (m *Messages) named(name string) []protoreflect.MessageDescriptor {
	if !isPattern(name) {
		return m.with[name]
	}
	var named []protoreflect.MessageDescriptor
	for _, md := range m.all {
		if md.IsMapEntry() {
			continue
		}
		for full, more := string(md.FullName()), true; more; _, full, more = strings.Cut(full, ".") {
			if matches(name, full) {
				named = append(named, md)
				break
			}
		}
	}
	return named
}

// fieldsNamed yields the fields of md called name, which may be a pattern.
func fieldsNamed(md protoreflect.MessageDescriptor, name string) iter.Seq[protoreflect.FieldDescriptor] {
	return func(yield func(protoreflect.FieldDescriptor) bool) {
		fields := md.Fields()
		if !isPattern(name) {
			if fd := fields.ByName(protoreflect.Name(name)); fd != nil {
				yield(fd)
			}
			return
		}
		for i := range fields.Len() {
			if fd := fields.Get(i); matches(name, string(fd.Name())) && !yield(fd) {
				return
			}
		}
	}
}

func isPattern(name string) bool { return strings.ContainsAny(name, `*?[\`) }

// matches reports whether name has a form. What is no pattern matches nothing.
func matches(pattern, name string) bool {
	if pattern == "*" {
		return true
	}
	ok, _ := path.Match(pattern, name)
	return ok
}
