package inventory

import (
	"bytes"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// stamps are patterns of fields that differ in each answer: see [Spec.Stamps]. A change in these alone makes no status stale, and
// is no reason to write the file.
type stamps []string

// has reports whether a field is a stamp.
func (s stamps) has(fd protoreflect.FieldDescriptor) bool {
	if len(s) == 0 || fd == nil {
		return false
	}
	return matchesAny(s, string(fd.Parent().Name())+"."+string(fd.Name()))
}

// same reports whether two messages have the same content.
func same(md protoreflect.MessageDescriptor, a, b []byte) bool {
	return len(a) == len(b) && stamps(nil).same(md, a, b)
}

// same reports whether two messages have the same content, apart from stamps. It reads both side by side, field by field, so
// fields count only in the same order. It compares the entries of a map in any order: a backend that is written in Go sends
// them in another order each time. Malformed messages are the same only if their bytes are.
func (s stamps) same(md protoreflect.MessageDescriptor, a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	for len(a) > 0 || len(b) > 0 {
		fieldA, fieldB := next(a), next(b)
		if fieldA == nil && len(a) > 0 || fieldB == nil && len(b) > 0 {
			return false
		}
		if bytes.Equal(fieldA, fieldB) {
			a, b = a[len(fieldA):], b[len(fieldB):]
			continue
		}
		fd, tag := fieldOf(md, fieldA)
		if s.has(fd) {
			a = a[len(fieldA):]
			continue
		}
		if other, _ := fieldOf(md, fieldB); s.has(other) {
			b = b[len(fieldB):]
			continue
		}
		switch {
		case fd == nil || fd.Message() == nil || fieldB == nil || !bytes.HasPrefix(fieldB, fieldA[:tag]):
			return false
		case fd.IsMap():
			var roomA, roomB [16][]byte
			entriesA, restA := entries(roomA[:0], a, fieldA[:tag])
			entriesB, restB := entries(roomB[:0], b, fieldB[:tag])
			slices.SortFunc(entriesA, bytes.Compare)
			slices.SortFunc(entriesB, bytes.Compare)
			if !slices.EqualFunc(entriesA, entriesB, bytes.Equal) {
				return false
			}
			a, b = restA, restB
		default:
			innerA, n := protowire.ConsumeBytes(fieldA[tag:])
			innerB, m := protowire.ConsumeBytes(fieldB[tag:])
			if n < 0 || m < 0 || !s.same(fd.Message(), innerA, innerB) {
				return false
			}
			a, b = a[len(fieldA):], b[len(fieldB):]
		}
	}
	return true
}

// fieldOf returns the descriptor of the field that b holds, nil if md has none, and the length of its tag.
func fieldOf(md protoreflect.MessageDescriptor, b []byte) (fd protoreflect.FieldDescriptor, tag int) {
	num, _, tag := protowire.ConsumeTag(b)
	if tag < 0 {
		return nil, 0
	}
	return md.Fields().ByNumber(num), tag
}

// next returns the first field of a message, nil if there is none or it is malformed.
func next(b []byte) []byte {
	_, _, n := protowire.ConsumeField(b)
	if n < 0 {
		return nil
	}
	return b[:n:n]
}

// entries appends the leading fields of b that have this tag to all, and returns the rest of b.
func entries(all [][]byte, b, tag []byte) ([][]byte, []byte) {
	for {
		field := next(b)
		if !bytes.HasPrefix(field, tag) {
			return all, b
		}
		all = append(all, field)
		b = b[len(field):]
	}
}
