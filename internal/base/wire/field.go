// Package wire reads the fields of serialized protobuf messages without decoding them. It does not copy or
// allocate: the slices that it returns are parts of the message.
//
//	for f, err := range wire.Fields(message) {
//		if err != nil {
//			return err
//		}
//		if f.Number == nameField {
//			name = f.Bytes()
//		}
//	}
package wire

import (
	"iter"

	"google.golang.org/protobuf/encoding/protowire"
)

// A Field is one field of a message on the wire.
type Field struct {
	Number protowire.Number
	Type   protowire.Type
	Raw    []byte // the whole field, with its tag
	Value  []byte // the bytes after the tag: with the length of a string, with the end tag of a group
}

// Fields yields the fields of a message in order. For a malformed message it yields the fields that
// it can read, and then an error, with a Field whose Raw is the rest of the message.
func Fields(message []byte) iter.Seq2[Field, error] {
	return func(yield func(Field, error) bool) {
		for len(message) > 0 {
			num, typ, tag := protowire.ConsumeTag(message)
			if tag < 0 {
				yield(Field{Raw: message}, protowire.ParseError(tag))
				return
			}
			size := protowire.ConsumeFieldValue(num, typ, message[tag:])
			if size < 0 {
				yield(Field{Raw: message}, protowire.ParseError(size))
				return
			}
			end := tag + size
			if !yield(Field{num, typ, message[:end:end], message[tag:end:end]}, nil) {
				return
			}
			message = message[end:]
		}
	}
}

// Tag returns the bytes of the tag.
func (f Field) Tag() []byte { return f.Raw[:len(f.Raw)-len(f.Value)] }

// Bytes returns the content of a string, bytes, message, packed list or group, and nil for any other
// field.
func (f Field) Bytes() []byte {
	var b []byte
	switch f.Type {
	case protowire.BytesType:
		b, _ = protowire.ConsumeBytes(f.Value)
	case protowire.StartGroupType:
		b, _ = protowire.ConsumeGroup(f.Number, f.Value)
	}
	return b
}

// Uint returns the bits of a number as an unsigned integer, and zero for any other field.
func (f Field) Uint() uint64 {
	switch f.Type {
	case protowire.VarintType:
		x, _ := protowire.ConsumeVarint(f.Value)
		return x
	case protowire.Fixed32Type:
		x, _ := protowire.ConsumeFixed32(f.Value)
		return uint64(x)
	case protowire.Fixed64Type:
		x, _ := protowire.ConsumeFixed64(f.Value)
		return x
	}
	return 0
}

// Entry returns the key and the value of a map entry, which must have the given wire types. If there
// are several, the last one counts; if one is missing, or has another type, Entry returns the zero
// Field. For a malformed entry, left is the number of bytes that it could not read.
func Entry(entry []byte, keyType, valueType protowire.Type) (key, value Field, left int) {
	for f, err := range Fields(entry) {
		switch {
		case err != nil:
			left = len(f.Raw)
		case f.Number == 1 && f.Type == keyType:
			key = f
		case f.Number == 2 && f.Type == valueType:
			value = f
		}
	}
	return key, value, left
}

// MapEntry is [Entry] for keys and values that are strings, bytes or messages. It reports
// false if the entry is malformed.
func MapEntry(entry []byte) (key, value []byte, ok bool) {
	k, v, left := Entry(entry, protowire.BytesType, protowire.BytesType)
	return k.Bytes(), v.Bytes(), left == 0
}
