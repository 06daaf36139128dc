package rewrite

import (
	"iter"
	"path"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// Messages are the messages of an API, to which rules apply. They are immutable and safe for
// concurrent use.
type Messages struct {
	all  []protoreflect.MessageDescriptor
	with map[string][]protoreflect.MessageDescriptor // :: name, with all, some or none of its package → messages
}

// Reachable returns roots and all messages that their fields lead to.
func Reachable(roots []protoreflect.MessageDescriptor) *Messages {
	m := &Messages{with: map[string][]protoreflect.MessageDescriptor{}}
	visited := map[protoreflect.FullName]bool{}
	var visit func(md protoreflect.MessageDescriptor)
	visit = func(md protoreflect.MessageDescriptor) {
		if visited[md.FullName()] {
			return
		}
		visited[md.FullName()] = true
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
			continue // rules name the map instead
		}
		for name, more := string(md.FullName()), true; more; _, name, more = strings.Cut(name, ".") {
			m.with[name] = append(m.with[name], md)
		}
	}
	return m
}

// All returns the messages, map entries included, each once: the roots in their order, and after
// each the messages that it leads to. The caller must not change the slice.
func (m *Messages) All() []protoreflect.MessageDescriptor { return m.all }

// named returns the messages with the name or pattern name, which may include the package.
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

// fieldsNamed yields the fields of md with the name or pattern name.
func fieldsNamed(md protoreflect.MessageDescriptor, name string) iter.Seq[protoreflect.FieldDescriptor] {
	return func(yield func(protoreflect.FieldDescriptor) bool) {
		for i := range md.Fields().Len() {
			if fd := md.Fields().Get(i); matches(name, string(fd.Name())) && !yield(fd) {
				return
			}
		}
	}
}

func isPattern(name string) bool { return strings.ContainsAny(name, `*?[\`) }

// matches reports whether name matches pattern. A malformed pattern matches nothing.
func matches(pattern, name string) bool {
	if pattern == "*" || pattern == name {
		return true
	}
	ok, _ := path.Match(pattern, name)
	return ok
}
