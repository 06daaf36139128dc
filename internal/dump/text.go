package dump

import (
	"fmt"
	"strconv"

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
	// SecretKey reports entries of maps to hide, by their key. Optional.
	SecretKey func(fd protoreflect.FieldDescriptor, key []byte) bool
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
		if fd == nil && t.HidesUnknown(md) {
			dst = append(strconv.AppendInt(dst, int64(num), 10), ": "+Redacted...)
			src = src[n+m:]
			continue
		}
		dst = t.field(dst, fd, num, typ, src[n:n+m], depth)
		src = src[n+m:]
	}
	return dst
}

func (t Text) field(dst []byte, fd protoreflect.FieldDescriptor, num protowire.Number, typ protowire.Type, v []byte, depth int) []byte {
	switch {
	case fd != nil && t.isSecret(fd): // even if it comes in a way that the schema does not allow
		return append(append(dst, fd.Name()...), ": "+Redacted...)
	case fd == nil || !fits(fd, typ):
		dst = strconv.AppendInt(dst, int64(num), 10)
		return t.guess(dst, num, typ, v, depth)
	case fd.IsMap():
		return t.entry(append(dst, fd.Name()...), fd, v, depth)
	default:
		return t.value(append(dst, fd.Name()...), fd, typ, v, depth)
	}
}

// isSecret reports whether the content of fd must not be shown.
func (t Text) isSecret(fd protoreflect.FieldDescriptor) bool {
	return !t.Unsafe && (MarkedSecret(fd) || t.Secret != nil && t.Secret(fd))
}

// HidesUnknown reports whether fields of md that the schema does not know must not be shown:
// where a field is secret, as in a message with credentials, a newer one most likely is.
func (t Text) HidesUnknown(md protoreflect.MessageDescriptor) bool {
	if md == nil || t.Unsafe {
		return false
	}
	for i := range md.Fields().Len() {
		if fd := md.Fields().Get(i); !fd.IsMap() && t.isSecret(fd) {
			return true
		}
	}
	return false
}

// MarkedSecret reports whether the schema marks fd with debug_redact. Go's
// protobuf does not honour that mark when it prints a message.
func MarkedSecret(fd protoreflect.FieldDescriptor) bool {
	o, ok := fd.Options().(*descriptorpb.FieldOptions)
	return ok && o.GetDebugRedact()
}
