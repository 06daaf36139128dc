package known

import (
	"bytes"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// same reports whether two messages say the same. Bytes alone do not tell: the
// entries of a map come in another order each time, from whoever is written in Go.
func same(md protoreflect.MessageDescriptor, a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	return len(a) == len(b) && bytes.Equal(ordered(md, a), ordered(md, b))
}

// ordered returns a message with the entries of its maps in order, behind
// everything else. It is for comparing only; what is malformed stays as it is.
func ordered(md protoreflect.MessageDescriptor, b []byte) []byte {
	out := make([]byte, 0, len(b))
	var entries [][]byte
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeField(b)
		if n < 0 {
			return append(out, b...)
		}
		field := b[:n]
		b = b[n:]
		fd := md.Fields().ByNumber(num)
		switch {
		case fd == nil || typ != protowire.BytesType || fd.Message() == nil:
			out = append(out, field...)
		case fd.IsMap():
			entries = append(entries, field)
		default:
			_, _, tag := protowire.ConsumeTag(field)
			inner, _ := protowire.ConsumeBytes(field[tag:])
			out = append(out, field[:n-len(inner)]...)
			out = append(out, ordered(fd.Message(), inner)...)
		}
	}
	slices.SortFunc(entries, bytes.Compare)
	return append(out, bytes.Join(entries, nil)...)
}
