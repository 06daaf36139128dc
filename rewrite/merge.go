package rewrite

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Singular returns the fields of md that do not survive a merge by
// concatenation: of several values only the last would be left. Lists and maps
// survive. A program that merges messages of type md has to say what wins in each.
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

// Without appends src to dst without those of its fields for which drop returns true, and returns
// dst. It calls drop for each field, in their order. Fields of messages inside stay.
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
