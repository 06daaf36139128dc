package dump

import (
	"encoding/base64"
	"math"
	"strconv"
	"sync"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// AppendJSON appends the message src of type md to dst as a JSON object, and
// returns dst. It is ProtoJSON with the names of the .proto file: 64-bit numbers
// are strings, bytes are base64, enums are names. Fields that are not on the
// wire are left out, and well-known types are messages like others. A key of a map that
// is on the wire twice is a member twice, of which readers take the last, as protobuf does.
//
// It never fails: a field the schema does not know stands under its number with
// a guess at its meaning, and a message that is broken has a last member "!"
// that says so. A nil md knows no field. AppendJSON does not keep src, and hides
// nothing: what is secret must be out of src.
func AppendJSON(dst []byte, md protoreflect.MessageDescriptor, src []byte) []byte {
	return jsonMessage(dst, md, src, 0)
}

// rawField is a field as it lies on the wire.
type rawField struct {
	num  protowire.Number
	typ  protowire.Type
	v    []byte // behind the tag
	done bool
}

// splitFields appends the fields of src to fields. Bytes that are no field any more
// are counted.
func splitFields(fields []rawField, src []byte) (_ []rawField, broken int) {
	for len(src) > 0 {
		num, typ, n := protowire.ConsumeTag(src)
		if n < 0 {
			return fields, len(src)
		}
		m := protowire.ConsumeFieldValue(num, typ, src[n:])
		if m < 0 {
			return fields, len(src)
		}
		fields = append(fields, rawField{num: num, typ: typ, v: src[n : n+m]})
		src = src[n+m:]
	}
	return fields, 0
}

// rooms are for the fields of a message: events are decoded at the rate of calls.
var rooms = sync.Pool{New: func() any { room := make([]rawField, 0, 16); return &room }}

func jsonMessage(dst []byte, md protoreflect.MessageDescriptor, src []byte, depth int) []byte {
	if depth > maxTextDepth {
		return append(dst, `{"!":"nested too deep"}`...)
	}
	room := rooms.Get().(*[]rawField)
	fields, broken := splitFields((*room)[:0], src)
	defer func() {
		clear(fields) // it keeps nothing of src
		*room = fields
		rooms.Put(room)
	}()
	dst = append(dst, '{')
	start := len(dst)
	name := func(fd protoreflect.FieldDescriptor, num protowire.Number) {
		if len(dst) > start {
			dst = append(dst, ',')
		}
		dst = append(dst, '"')
		if fd != nil {
			dst = append(dst, fd.Name()...)
		} else {
			dst = strconv.AppendInt(dst, int64(num), 10)
		}
		dst = append(dst, `":`...)
	}
	for i := range fields {
		f := &fields[i]
		if f.done {
			continue
		}
		fd := known(md, f.num, f.typ)
		name(fd, f.num)
		same := func(yield func(*rawField)) { // the fields that belong together, wherever they stand
			for j := i; j < len(fields); j++ {
				if o := &fields[j]; o.num == f.num && !o.done && known(md, o.num, o.typ) == fd {
					o.done = true
					yield(o)
				}
			}
		}
		switch {
		case fd == nil:
			dst = jsonUnknown(dst, same, depth)
		case fd.IsMap():
			dst = jsonMap(dst, fd, same, depth)
		case fd.IsList():
			dst = append(dst, '[')
			first := len(dst)
			same(func(o *rawField) { dst = jsonItems(dst, first, fd, o, depth) })
			dst = append(dst, ']')
		default:
			dst = jsonSingular(dst, fd, same, depth)
		}
	}
	if broken > 0 {
		if len(dst) > start {
			dst = append(dst, ',')
		}
		dst = append(dst, `"!":"malformed: `...)
		dst = append(strconv.AppendInt(dst, int64(broken), 10), ` bytes left"`...)
	}
	return append(dst, '}')
}

// known returns the descriptor of a field, nil if the schema does not know it, or
// knows it as something else.
func known(md protoreflect.MessageDescriptor, num protowire.Number, typ protowire.Type) protoreflect.FieldDescriptor {
	if md == nil {
		return nil
	}
	if fd := md.Fields().ByNumber(num); fd != nil && fits(fd, typ) {
		return fd
	}
	return nil
}

// body is the content of a message field.
func (f *rawField) body() []byte {
	var b []byte
	if f.typ == protowire.StartGroupType {
		b, _ = protowire.ConsumeGroup(f.num, f.v)
	} else {
		b, _ = protowire.ConsumeBytes(f.v)
	}
	return b
}

// jsonSingular prints the last value; parts of a message are merged, as a decoder
// does.
func jsonSingular(dst []byte, fd protoreflect.FieldDescriptor, same func(func(*rawField)), depth int) []byte {
	var last *rawField
	var whole []byte
	same(func(o *rawField) {
		if fd.Message() != nil {
			if last == nil {
				whole = o.body()
			} else {
				whole = append(whole[:len(whole):len(whole)], o.body()...)
			}
		}
		last = o
	})
	if fd.Message() != nil {
		return jsonMessage(dst, fd.Message(), whole, depth+1)
	}
	return jsonScalar(dst, fd, last.v)
}

// jsonItems prints what one field adds to a list that began at dst[first:].
func jsonItems(dst []byte, first int, fd protoreflect.FieldDescriptor, o *rawField, depth int) []byte {
	comma := func() {
		if len(dst) > first {
			dst = append(dst, ',')
		}
	}
	switch {
	case fd.Message() != nil:
		comma()
		return jsonMessage(dst, fd.Message(), o.body(), depth+1)
	case o.typ == protowire.BytesType && wireType(fd.Kind()) != protowire.BytesType:
		for packed := o.body(); len(packed) > 0; {
			n := protowire.ConsumeFieldValue(fd.Number(), wireType(fd.Kind()), packed)
			if n < 0 {
				comma()
				return append(dst, `"!"`...)
			}
			comma()
			dst = jsonScalar(dst, fd, packed[:n])
			packed = packed[n:]
		}
		return dst
	}
	comma()
	return jsonScalar(dst, fd, o.v)
}

func jsonMap(dst []byte, fd protoreflect.FieldDescriptor, same func(func(*rawField)), depth int) []byte {
	dst = append(dst, '{')
	first := len(dst)
	same(func(o *rawField) {
		var room [2]rawField
		fields, _ := splitFields(room[:0], o.body())
		var key, value []byte
		for i := range fields {
			switch f := &fields[i]; {
			case f.num == 1 && fits(fd.MapKey(), f.typ):
				key = f.v
			case f.num == 2 && fits(fd.MapValue(), f.typ):
				value = f.v
			}
		}
		if len(dst) > first {
			dst = append(dst, ',')
		}
		at := len(dst)
		if dst = jsonScalar(dst, fd.MapKey(), key); dst[at] != '"' { // keys are strings
			dst = append(strconv.AppendQuote(dst[:at], string(dst[at:])), ':')
		} else {
			dst = append(dst, ':')
		}
		if fd.MapValue().Message() != nil {
			b, _ := protowire.ConsumeBytes(value)
			dst = jsonMessage(dst, fd.MapValue().Message(), b, depth+1)
		} else {
			dst = jsonScalar(dst, fd.MapValue(), value)
		}
	})
	return append(dst, '}')
}

// jsonUnknown prints one value, or a list where there are several.
func jsonUnknown(dst []byte, same func(func(*rawField)), depth int) []byte {
	at, n := len(dst), 0
	same(func(o *rawField) {
		if n > 0 {
			dst = append(dst, ',')
		}
		n++
		dst = jsonGuess(dst, o, depth)
	})
	if n == 1 {
		return dst
	}
	dst = append(dst, "[]"...)
	copy(dst[at+1:], dst[at:len(dst)-2])
	dst[at] = '['
	dst[len(dst)-1] = ']'
	return dst
}

func jsonGuess(dst []byte, o *rawField, depth int) []byte {
	switch o.typ {
	case protowire.VarintType:
		x, _ := protowire.ConsumeVarint(o.v)
		if x > 1<<53 {
			return append(strconv.AppendUint(append(dst, '"'), x, 10), '"')
		}
		return strconv.AppendUint(dst, x, 10)
	case protowire.Fixed32Type:
		x, _ := protowire.ConsumeFixed32(o.v)
		return strconv.AppendUint(dst, uint64(x), 10)
	case protowire.Fixed64Type:
		x, _ := protowire.ConsumeFixed64(o.v)
		return append(strconv.AppendUint(append(dst, '"'), x, 10), '"')
	case protowire.StartGroupType:
		return jsonMessage(dst, nil, o.body(), depth+1)
	}
	b := o.body()
	switch {
	case isText(b):
		return appendJSONString(dst, b)
	case isMessage(b) && depth < maxTextDepth:
		return jsonMessage(dst, nil, b, depth+1)
	}
	return jsonBytes(append(dst, `"base64:`...), b)
}

func jsonBytes(dst, b []byte) []byte { return append(base64.StdEncoding.AppendEncode(dst, b), '"') }

// jsonScalar prints v, or the zero value if v is empty.
func jsonScalar(dst []byte, fd protoreflect.FieldDescriptor, v []byte) []byte {
	switch fd.Kind() {
	case protoreflect.StringKind:
		b, _ := protowire.ConsumeBytes(v)
		return appendJSONString(dst, b)
	case protoreflect.BytesKind:
		b, _ := protowire.ConsumeBytes(v)
		return jsonBytes(append(dst, '"'), b)
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Uint64Kind, protoreflect.Sfixed64Kind, protoreflect.Fixed64Kind:
		return append(Text{}.scalar(append(dst, '"'), fd, v), '"')
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		at := len(dst)
		dst = Text{}.scalar(dst, fd, v)
		if f, _ := strconv.ParseFloat(string(dst[at:]), 64); math.IsNaN(f) || math.IsInf(f, 0) {
			name := map[bool]string{true: `"NaN"`, false: `"Infinity"`}[math.IsNaN(f)]
			if f < 0 {
				name = `"-Infinity"`
			}
			return append(dst[:at], name...)
		}
		return dst
	case protoreflect.EnumKind:
		at := len(dst)
		dst = Text{}.scalar(append(dst, '"'), fd, v)
		if c := dst[at+1]; c == '-' || c >= '0' && c <= '9' { // a number without a name
			return append(dst[:at], dst[at+1:]...)
		}
		return append(dst, '"')
	}
	return Text{}.scalar(dst, fd, v)
}

const hexDigits = "0123456789abcdef"

// appendJSONString quotes b; what is no UTF-8 in it becomes the replacement
// character.
func appendJSONString(dst, b []byte) []byte {
	dst = append(dst, '"')
	for i := 0; i < len(b); {
		c := b[i]
		if c < utf8.RuneSelf {
			switch {
			case c == '"' || c == '\\':
				dst = append(dst, '\\', c)
			case c >= ' ' && c != 0x7f:
				dst = append(dst, c)
			case c == '\n':
				dst = append(dst, '\\', 'n')
			case c == '\t':
				dst = append(dst, '\\', 't')
			default:
				dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
			}
			i++
			continue
		}
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n == 1 {
			dst = append(dst, `\ufffd`...)
		} else {
			dst = append(dst, b[i:i+n]...)
		}
		i += n
	}
	return append(dst, '"')
}
