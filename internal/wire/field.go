// Package wire walks over serialized protobuf messages without decoding them. It copies and
// allocates nothing: what it returns are parts of the message.
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

// A Field is one field of a message as it lies on the wire.
type Field struct {
	Number protowire.Number
	Type   protowire.Type
	Raw    []byte // all of it, tag included
	Value  []byte // what follows the tag: of a string its length, too, of a group its end
}

// Fields yields the fields of a message in their order. Of a message that is malformed it
// yields those that it can read, and last an error, with a Field that has no number and whose
// Raw is the rest of the message.
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

// Tag returns the tag as it lies on the wire.
func (f Field) Tag() []byte { return f.Raw[:len(f.Raw)-len(f.Value)] }

// Bytes returns the content of a string, bytes, message, packed list or group; of any other
// field nil.
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

// Uint returns the bits of a number, as an unsigned one; of any other field zero.
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

// Entry returns key and value of an entry of a map, which have these types. Of several the
// last one counts; one that is missing, or has another type, is the zero Field. Of an entry
// that is malformed it returns what it could read, and how many bytes are left.
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
