package memory

import (
	"bytes"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// same reports whether two messages have the same content. It compares the entries of maps in any
// order, because backends that are written in Go send them in another order each time. It does not
// do so for fields: messages with their fields in another order are not the same. Malformed
// messages are the same only if their bytes are.
func same(md protoreflect.MessageDescriptor, a, b []byte) bool {
	if len(a) != len(b) {
		return false
	}
	if bytes.Equal(a, b) {
		return true
	}
	for len(a) > 0 && len(b) > 0 {
		fieldA, fieldB := next(a), next(b)
		if fieldA == nil || fieldB == nil {
			return false
		}
		if bytes.Equal(fieldA, fieldB) {
			a, b = a[len(fieldA):], b[len(fieldB):]
			continue
		}
		num, typ, tag := protowire.ConsumeTag(fieldA)
		fd := md.Fields().ByNumber(num)
		switch {
		case fd == nil || fd.Message() == nil || typ != protowire.BytesType || !bytes.Equal(fieldA[:tag], fieldB[:tag]):
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
			innerA, _ := protowire.ConsumeBytes(fieldA[tag:])
			innerB, _ := protowire.ConsumeBytes(fieldB[tag:])
			if !same(fd.Message(), innerA, innerB) {
				return false
			}
			a, b = a[len(fieldA):], b[len(fieldB):]
		}
	}
	return len(a) == len(b)
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
