package rewrite

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Singular returns the fields of md of which a merge by concatenation would leave only the last
// value: all except lists and maps. A program that merges messages of type md must decide which
// value of each wins.
//
// Concatenated messages are the merged message: "The encoding of a message [...]
// is such that concatenating two messages merges them",
// https://protobuf.dev/programming-guides/encoding/#last-one-wins.
func Singular(md protoreflect.MessageDescriptor) []protoreflect.FieldDescriptor {
	var lost []protoreflect.FieldDescriptor
	for i := range md.Fields().Len() {
		if fd := md.Fields().Get(i); !fd.IsList() && !fd.IsMap() {
			lost = append(lost, fd)
		}
	}
	return lost
}

// Without appends the message src to dst, without the fields for which drop returns true, and
// returns dst. It calls drop for each field of src, in their order on the wire, but not for those
// of messages inside src. It fails with a [MalformedError].
func Without(dst, src []byte, drop func(protowire.Number) bool) ([]byte, error) {
	for i := 0; i < len(src); {
		f, after, err := whole(src, i)
		if err != nil {
			return dst, err
		}
		if !drop(f.num) {
			dst = append(dst, src[i:after]...)
		}
		i = after
	}
	return dst, nil
}
