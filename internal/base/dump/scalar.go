package dump

import (
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

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
	switch fd.Kind() { // decoders use only the lower half of a value that exceeds 32 bits
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

// fits reports whether a field of fd's type can have the wire type typ.
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
