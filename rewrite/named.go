package rewrite

import (
	"iter"
	"path"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// messages finds messages by name. Profiles have some hundred rules, which are looked
// up several times when the process starts: most name a message or a field, and need no
// comparison with each.
type messages struct {
	all  []protoreflect.MessageDescriptor
	with map[string][]protoreflect.MessageDescriptor // :: name, with any part of its package → messages
}

func newMessages(all []protoreflect.MessageDescriptor) *messages {
	m := &messages{all: all, with: map[string][]protoreflect.MessageDescriptor{}}
	for _, md := range all {
		if md.IsMapEntry() {
			continue // the map is the field
		}
		for name, more := string(md.FullName()), true; more; _, name, more = strings.Cut(name, ".") {
			m.with[name] = append(m.with[name], md)
		}
	}
	return m
}

// named returns the messages called name, which may be a pattern, with or without
// their packages.
func (m *messages) named(name string) []protoreflect.MessageDescriptor {
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
