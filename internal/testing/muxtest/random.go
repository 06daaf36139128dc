package muxtest

import (
	"math/rand/v2"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Random returns a valid message of type md as another implementation with another version of the API
// could write it: fields in any order, repeated, with zero values, invalid UTF-8, oversized varints,
// and unknown fields.
func Random(r *rand.Rand, md protoreflect.MessageDescriptor) []byte {
	return message(nil, r, md, 0)
}

func message(b []byte, r *rand.Rand, md protoreflect.MessageDescriptor, depth int) []byte {
	fields := md.Fields()
	for range r.IntN(2 * (fields.Len() + 1)) {
		if fields.Len() == 0 || r.IntN(8) == 0 {
			b = unknown(b, r)
			continue
		}
		fd := fields.Get(r.IntN(fields.Len()))
		if fd.Message() != nil && depth > 8 {
			continue
		}
		b = field(b, r, fd, depth)
	}
	return b
}

func unknown(b []byte, r *rand.Rand) []byte {
	num := protowire.Number(1000 + r.IntN(1<<20))
	switch r.IntN(5) {
	case 0:
		return varint(tag(b, r, num, protowire.VarintType), r, r.Uint64())
	case 1:
		return protowire.AppendFixed32(tag(b, r, num, protowire.Fixed32Type), r.Uint32())
	case 2:
		return protowire.AppendFixed64(tag(b, r, num, protowire.Fixed64Type), r.Uint64())
	case 3:
		b = tag(b, r, num, protowire.StartGroupType)
		if r.IntN(2) == 0 {
			b = unknown(b, r)
		}
		return protowire.AppendTag(b, num, protowire.EndGroupType)
	default:
		return bytes(tag(b, r, num, protowire.BytesType), r, text(r))
	}
}

func field(b []byte, r *rand.Rand, fd protoreflect.FieldDescriptor, depth int) []byte {
	switch fd.Kind() {
	case protoreflect.MessageKind:
		return bytes(tag(b, r, fd.Number(), protowire.BytesType), r, message(nil, r, fd.Message(), depth+1))
	case protoreflect.GroupKind:
		b = message(tag(b, r, fd.Number(), protowire.StartGroupType), r, fd.Message(), depth+1)
		return protowire.AppendTag(b, fd.Number(), protowire.EndGroupType)
	case protoreflect.StringKind, protoreflect.BytesKind:
		return bytes(tag(b, r, fd.Number(), protowire.BytesType), r, text(r))
	case protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind, protoreflect.FloatKind:
		return protowire.AppendFixed32(tag(b, r, fd.Number(), protowire.Fixed32Type), r.Uint32())
	case protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind, protoreflect.DoubleKind:
		return protowire.AppendFixed64(tag(b, r, fd.Number(), protowire.Fixed64Type), r.Uint64())
	default:
		if fd.IsList() && r.IntN(2) == 0 {
			var packed []byte
			for range r.IntN(4) {
				packed = varint(packed, r, r.Uint64())
			}
			return bytes(tag(b, r, fd.Number(), protowire.BytesType), r, packed)
		}
		return varint(tag(b, r, fd.Number(), protowire.VarintType), r, r.Uint64N(4))
	}
}

func tag(b []byte, r *rand.Rand, num protowire.Number, typ protowire.Type) []byte {
	return varint(b, r, protowire.EncodeTag(num, typ))
}

func bytes(b []byte, r *rand.Rand, v []byte) []byte {
	return append(varint(b, r, uint64(len(v))), v...)
}

// varint sometimes appends a varint that is longer than necessary.
func varint(b []byte, r *rand.Rand, v uint64) []byte {
	b = protowire.AppendVarint(b, v)
	if r.IntN(20) == 0 && protowire.SizeVarint(v) < 5 {
		b[len(b)-1] |= 0x80
		b = append(b, 0)
	}
	return b
}

// text returns random bytes, often not UTF-8. They never contain "__", which separates the prefix of
// a backend from a name.
func text(r *rand.Rand) []byte {
	v := make([]byte, r.IntN(20))
	for i := range v {
		for v[i] = byte(r.Uint32()); v[i] == '_'; {
			v[i] = byte(r.Uint32())
		}
	}
	if r.IntN(30) == 0 {
		v = append(v, make([]byte, 300)...)
	}
	return v
}
