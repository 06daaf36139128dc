package dump

import (
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// value prints what stands behind a field's name, the separator included.
func (t Text) value(dst []byte, fd protoreflect.FieldDescriptor, typ protowire.Type, v []byte, depth int) []byte {
	switch {
	case fd.Message() != nil:
		body, _ := protowire.ConsumeBytes(v)
		if typ == protowire.StartGroupType {
			body, _ = protowire.ConsumeGroup(fd.Number(), v)
		}
		if len(body) == 0 {
			return append(dst, " {}"...)
		}
		dst = append(dst, " {"...)
		dst = t.message(dst, fd.Message(), body, depth+1)
		return append(dst, '}')
	case typ == protowire.BytesType && fd.Kind() != protoreflect.StringKind && fd.Kind() != protoreflect.BytesKind:
		packed, _ := protowire.ConsumeBytes(v)
		dst = append(dst, ": ["...)
		for i := 0; len(packed) > 0; i++ {
			if i > 0 {
				dst = append(dst, ", "...)
			}
			n := protowire.ConsumeFieldValue(fd.Number(), wireType(fd.Kind()), packed)
			if n < 0 {
				dst = append(dst, "<malformed>"...)
				break
			}
			dst = t.scalar(dst, fd, packed[:n])
			packed = packed[n:]
		}
		return append(dst, ']')
	default:
		dst = append(dst, ": "...)
		return t.scalar(dst, fd, v)
	}
}

// entry prints one entry of the map fd. What is missing in it, or is of another
// type, is the zero value.
func (t Text) entry(dst []byte, fd protoreflect.FieldDescriptor, v []byte, depth int) []byte {
	var key, value []byte
	typ := wireType(fd.MapValue().Kind())
	src, _ := protowire.ConsumeBytes(v)
	bad := false
	for len(src) > 0 {
		num, got, n := protowire.ConsumeTag(src)
		if bad = n < 0; bad {
			break
		}
		m := protowire.ConsumeFieldValue(num, got, src[n:])
		if bad = m < 0; bad {
			break
		}
		switch {
		case num == 1 && fits(fd.MapKey(), got):
			key = src[n : n+m]
		case num == 2 && fits(fd.MapValue(), got):
			value = src[n : n+m]
		}
		src = src[n+m:]
	}
	dst = append(t.scalar(append(dst, '['), fd.MapKey(), key), ']')
	if t.SecretKey != nil && !t.Unsafe {
		name, _ := protowire.ConsumeBytes(key)
		if t.SecretKey(fd, name) {
			return append(dst, ": "+Redacted...)
		}
	}
	dst = t.value(dst, fd.MapValue(), typ, value, depth)
	if bad {
		dst = fmt.Appendf(dst, " <malformed: %d bytes left>", len(src))
	}
	return dst
}

// scalar prints v, or the zero value if v is empty.
func (t Text) scalar(dst []byte, fd protoreflect.FieldDescriptor, v []byte) []byte {
	switch wireType(fd.Kind()) {
	case protowire.BytesType:
		b, _ := protowire.ConsumeBytes(v)
		return t.quote(dst, b)
	case protowire.Fixed32Type:
		x, _ := protowire.ConsumeFixed32(v)
		switch fd.Kind() {
		case protoreflect.FloatKind:
			return strconv.AppendFloat(dst, float64(math.Float32frombits(x)), 'g', -1, 32)
		case protoreflect.Sfixed32Kind:
			return strconv.AppendInt(dst, int64(int32(x)), 10)
		}
		return strconv.AppendUint(dst, uint64(x), 10)
	case protowire.Fixed64Type:
		x, _ := protowire.ConsumeFixed64(v)
		switch fd.Kind() {
		case protoreflect.DoubleKind:
			return strconv.AppendFloat(dst, math.Float64frombits(x), 'g', -1, 64)
		case protoreflect.Sfixed64Kind:
			return strconv.AppendInt(dst, int64(x), 10)
		}
		return strconv.AppendUint(dst, x, 10)
	}
	x, _ := protowire.ConsumeVarint(v)
	switch fd.Kind() { // a decoder ignores the upper half of what is too large for 32 bits
	case protoreflect.BoolKind:
		return strconv.AppendBool(dst, x != 0)
	case protoreflect.EnumKind:
		if e := fd.Enum().Values().ByNumber(protoreflect.EnumNumber(int32(x))); e != nil {
			return append(dst, e.Name()...)
		}
		return strconv.AppendInt(dst, int64(int32(x)), 10)
	case protoreflect.Int32Kind:
		return strconv.AppendInt(dst, int64(int32(x)), 10)
	case protoreflect.Int64Kind:
		return strconv.AppendInt(dst, int64(x), 10)
	case protoreflect.Sint32Kind:
		return strconv.AppendInt(dst, protowire.DecodeZigZag(x&math.MaxUint32), 10)
	case protoreflect.Sint64Kind:
		return strconv.AppendInt(dst, protowire.DecodeZigZag(x), 10)
	case protoreflect.Uint32Kind:
		return strconv.AppendUint(dst, uint64(uint32(x)), 10)
	}
	return strconv.AppendUint(dst, x, 10)
}

func (t Text) quote(dst, b []byte) []byte {
	if t.MaxValue <= 0 || len(b) <= t.MaxValue {
		return strconv.AppendQuote(dst, string(b))
	}
	cut := t.MaxValue
	for cut > 0 && !utf8.RuneStart(b[cut]) && utf8.Valid(b) { // not in the middle of a letter
		cut--
	}
	dst = strconv.AppendQuote(dst, string(b[:cut]))
	return fmt.Appendf(dst, "...(%d bytes)", len(b))
}

// fits reports whether a field of fd's type can lie on the wire as typ.
func fits(fd protoreflect.FieldDescriptor, typ protowire.Type) bool {
	if fd.Kind() == protoreflect.GroupKind {
		return typ == protowire.StartGroupType
	}
	return typ == wireType(fd.Kind()) || fd.IsList() && typ == protowire.BytesType
}

func wireType(k protoreflect.Kind) protowire.Type {
	switch k {
	case protoreflect.StringKind, protoreflect.BytesKind, protoreflect.MessageKind:
		return protowire.BytesType
	case protoreflect.GroupKind:
		return protowire.StartGroupType
	case protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind, protoreflect.FloatKind:
		return protowire.Fixed32Type
	case protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind, protoreflect.DoubleKind:
		return protowire.Fixed64Type
	default:
		return protowire.VarintType
	}
}
