package codec

import (
	"fmt"
	"math"
	"strconv"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

// Text says how to print frames for people. The zero Text prints everything but
// secrets, on one line:
//
//	container_id: "7f" timeout: 10 labels["app"]: "web" 99: "unknown field"
//
// It never fails: fields the schema does not know are printed by number with a
// guess at their meaning, and a message that is broken is printed up to there.
type Text struct {
	// Secret reports fields to hide beyond those that the schema itself marks
	// with debug_redact. Optional.
	Secret func(protoreflect.FieldDescriptor) bool
	// Unsafe prints secrets too.
	Unsafe bool
	// MaxValue cuts strings and bytes that are longer, in bytes. Zero means
	// no limit.
	MaxValue int
}

// Redacted stands where a secret was.
const Redacted = "[redacted]"

// Append appends the message src of type md to dst and returns dst. A nil md
// prints every field by number. Append does not keep src.
func (t Text) Append(dst []byte, md protoreflect.MessageDescriptor, src []byte) []byte {
	return t.message(dst, md, src, 0)
}

const maxTextDepth = 100

func (t Text) message(dst []byte, md protoreflect.MessageDescriptor, src []byte, depth int) []byte {
	if depth > maxTextDepth {
		return append(dst, "<nested too deep>"...)
	}
	start := len(dst)
	for len(src) > 0 {
		if len(dst) > start {
			dst = append(dst, ' ')
		}
		num, typ, n := protowire.ConsumeTag(src)
		if n < 0 {
			return fmt.Appendf(dst, "<malformed: %d bytes left>", len(src))
		}
		m := protowire.ConsumeFieldValue(num, typ, src[n:])
		if m < 0 {
			return fmt.Appendf(dst, "<malformed: field %d: %d bytes left>", num, len(src))
		}
		var fd protoreflect.FieldDescriptor
		if md != nil {
			fd = md.Fields().ByNumber(num)
		}
		dst = t.field(dst, fd, num, typ, src[n:n+m], depth)
		src = src[n+m:]
	}
	return dst
}

func (t Text) field(dst []byte, fd protoreflect.FieldDescriptor, num protowire.Number, typ protowire.Type, v []byte, depth int) []byte {
	if fd == nil || !fits(fd, typ) {
		dst = strconv.AppendInt(dst, int64(num), 10)
		return t.guess(dst, num, typ, v, depth)
	}
	dst = append(dst, fd.Name()...)
	if t.isSecret(fd) {
		return append(dst, ": "+Redacted...)
	}
	switch {
	case fd.IsMap():
		entry, _ := protowire.ConsumeBytes(v)
		key, value := mapEntry(entry)
		dst = append(dst, '[')
		dst = t.scalarOr(dst, fd.MapKey(), key)
		dst = append(dst, ']')
		if len(value) == 0 {
			return append(dst, `: ""`...)
		}
		_, typ, n := protowire.ConsumeTag(value)
		return t.value(dst, fd.MapValue(), typ, value[n:], depth)
	default:
		return t.value(dst, fd, typ, v, depth)
	}
}

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

// scalarOr prints the value of the field in src, tag included, or the zero value.
func (t Text) scalarOr(dst []byte, fd protoreflect.FieldDescriptor, src []byte) []byte {
	_, typ, n := protowire.ConsumeTag(src)
	if n < 0 || typ != wireType(fd.Kind()) {
		if fd.Kind() == protoreflect.StringKind {
			return append(dst, `""`...)
		}
		return append(dst, '0')
	}
	return t.scalar(dst, fd, src[n:])
}

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
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return strconv.AppendBool(dst, x != 0)
	case protoreflect.EnumKind:
		if e := fd.Enum().Values().ByNumber(protoreflect.EnumNumber(int32(x))); e != nil {
			return append(dst, e.Name()...)
		}
		return strconv.AppendInt(dst, int64(int32(x)), 10)
	case protoreflect.Int32Kind, protoreflect.Int64Kind:
		return strconv.AppendInt(dst, int64(x), 10)
	case protoreflect.Sint32Kind, protoreflect.Sint64Kind:
		return strconv.AppendInt(dst, protowire.DecodeZigZag(x), 10)
	}
	return strconv.AppendUint(dst, x, 10)
}

// guess prints a field that the schema does not know: text if it reads as text,
// else a message if it can be one, else bytes.
func (t Text) guess(dst []byte, num protowire.Number, typ protowire.Type, v []byte, depth int) []byte {
	switch typ {
	case protowire.VarintType:
		x, _ := protowire.ConsumeVarint(v)
		return strconv.AppendUint(append(dst, ": "...), x, 10)
	case protowire.Fixed32Type:
		x, _ := protowire.ConsumeFixed32(v)
		return fmt.Appendf(dst, ": %#x", x)
	case protowire.Fixed64Type:
		x, _ := protowire.ConsumeFixed64(v)
		return fmt.Appendf(dst, ": %#x", x)
	case protowire.StartGroupType:
		body, _ := protowire.ConsumeGroup(num, v)
		dst = t.message(append(dst, " {"...), nil, body, depth+1)
		return append(dst, '}')
	}
	b, _ := protowire.ConsumeBytes(v)
	if !isText(b) && isMessage(b) && depth < maxTextDepth {
		dst = t.message(append(dst, " {"...), nil, b, depth+1)
		return append(dst, '}')
	}
	return t.quote(append(dst, ": "...), b)
}

func (t Text) quote(dst, b []byte) []byte {
	if t.MaxValue > 0 && len(b) > t.MaxValue {
		dst = strconv.AppendQuote(dst, string(b[:t.MaxValue]))
		return fmt.Appendf(dst, "...(%d bytes)", len(b))
	}
	return strconv.AppendQuote(dst, string(b))
}

// isSecret reports whether the content of fd must not be shown.
func (t Text) isSecret(fd protoreflect.FieldDescriptor) bool {
	return !t.Unsafe && (MarkedSecret(fd) || t.Secret != nil && t.Secret(fd))
}

// MarkedSecret reports whether the schema marks fd with debug_redact. Go's
// protobuf does not honour that mark when it prints a message.
func MarkedSecret(fd protoreflect.FieldDescriptor) bool {
	o, ok := fd.Options().(*descriptorpb.FieldOptions)
	return ok && o.GetDebugRedact()
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

// mapEntry returns the key and the value field of a map entry, tags included.
func mapEntry(src []byte) (key, value []byte) {
	for len(src) > 0 {
		num, typ, n := protowire.ConsumeTag(src)
		if n < 0 {
			return key, value
		}
		m := protowire.ConsumeFieldValue(num, typ, src[n:])
		if m < 0 {
			return key, value
		}
		switch num {
		case 1:
			key = src[:n+m]
		case 2:
			value = src[:n+m]
		}
		src = src[n+m:]
	}
	return key, value
}

func isText(b []byte) bool {
	if !utf8.Valid(b) {
		return false
	}
	for _, r := range string(b) {
		if !unicode.IsPrint(r) && r != '\n' && r != '\t' {
			return false
		}
	}
	return true
}

func isMessage(b []byte) bool {
	for len(b) > 0 {
		_, _, n := protowire.ConsumeField(b)
		if n < 0 {
			return false
		}
		b = b[n:]
	}
	return true
}
