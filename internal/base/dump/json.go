package dump

import (
	"encoding/base64"
	"math"
	"slices"
	"strconv"
	"sync"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/internal/base/wire"
)

// AppendJSON appends the message src of type md to dst as a JSON object, and returns dst. It is
// ProtoJSON with the names of the .proto file: 64-bit numbers are strings, bytes are base64, enums
// are names. Fields that are not on the wire are left out, and well-known types are printed like
// other messages. If a key of a map is on the wire twice, the object has it twice; readers use the
// last one, as protobuf does.
//
// AppendJSON never fails: a field that the schema does not know has its number as a name and a guess
// at its value, and a malformed message has a last member "!" that says so. A nil md knows no
// fields. AppendJSON does not keep src. It hides nothing: the caller must have removed secrets.
func AppendJSON(dst []byte, md protoreflect.MessageDescriptor, src []byte) []byte {
	return jsonMessage(dst, md, src, 0)
}

// member is a field of a message. Fields with the same number become one member of the object.
type member struct {
	wire.Field
	done bool
}

// rooms is a pool of memory for the fields of a message: events are decoded at the rate of calls.
var rooms = sync.Pool{New: func() any { room := make([]member, 0, 16); return &room }}

func jsonMessage(dst []byte, md protoreflect.MessageDescriptor, src []byte, depth int) []byte {
	if depth > maxDepth {
		return append(dst, `{"!":"nested too deep"}`...)
	}
	room := rooms.Get().(*[]member)
	fields, left := (*room)[:0], 0
	for f, err := range wire.Fields(src) {
		if err != nil {
			left = len(f.Raw)
			break
		}
		fields = append(fields, member{Field: f})
	}
	defer func() {
		clear(fields) // so that the pool keeps nothing of src
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
		fd := known(md, f.Field)
		name(fd, f.Number)
		same := func(yield func(*member)) { // yields all fields that belong to this member
			for j := i; j < len(fields); j++ {
				if o := &fields[j]; o.Number == f.Number && !o.done && known(md, o.Field) == fd {
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
			same(func(o *member) { dst = jsonItems(dst, first, fd, o, depth) })
			dst = append(dst, ']')
		default:
			dst = jsonSingular(dst, fd, same, depth)
		}
	}
	if left > 0 {
		if len(dst) > start {
			dst = append(dst, ',')
		}
		dst = append(dst, `"!":"malformed: `...)
		dst = append(strconv.AppendInt(dst, int64(left), 10), ` bytes left"`...)
	}
	return append(dst, '}')
}

// jsonSingular prints the last value. It merges the parts of a message, as a decoder does.
func jsonSingular(dst []byte, fd protoreflect.FieldDescriptor, same func(func(*member)), depth int) []byte {
	var last *member
	var whole []byte
	same(func(o *member) {
		if fd.Message() != nil {
			if last == nil {
				whole = o.Bytes()
			} else {
				whole = append(whole[:len(whole):len(whole)], o.Bytes()...)
			}
		}
		last = o
	})
	if fd.Message() != nil {
		return jsonMessage(dst, fd.Message(), whole, depth+1)
	}
	return jsonScalar(dst, fd, last.Value)
}

// jsonItems prints the items of one field, in a list that begins at dst[first:].
func jsonItems(dst []byte, first int, fd protoreflect.FieldDescriptor, o *member, depth int) []byte {
	comma := func() {
		if len(dst) > first {
			dst = append(dst, ',')
		}
	}
	switch {
	case fd.Message() != nil:
		comma()
		return jsonMessage(dst, fd.Message(), o.Bytes(), depth+1)
	case o.Type == protowire.BytesType && wireType(fd.Kind()) != protowire.BytesType:
		for packed := o.Bytes(); len(packed) > 0; {
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
	return jsonScalar(dst, fd, o.Value)
}

func jsonMap(dst []byte, fd protoreflect.FieldDescriptor, same func(func(*member)), depth int) []byte {
	dst = append(dst, '{')
	first := len(dst)
	same(func(o *member) {
		key, value, _ := wire.Entry(o.Bytes(), wireType(fd.MapKey().Kind()), wireType(fd.MapValue().Kind()))
		if len(dst) > first {
			dst = append(dst, ',')
		}
		at := len(dst)
		if dst = jsonScalar(dst, fd.MapKey(), key.Value); dst[at] != '"' { // keys are strings
			dst = append(strconv.AppendQuote(dst[:at], string(dst[at:])), ':')
		} else {
			dst = append(dst, ':')
		}
		if fd.MapValue().Message() != nil {
			dst = jsonMessage(dst, fd.MapValue().Message(), value.Bytes(), depth+1)
		} else {
			dst = jsonScalar(dst, fd.MapValue(), value.Value)
		}
	})
	return append(dst, '}')
}

// jsonUnknown prints one value, or a list if there are several.
func jsonUnknown(dst []byte, same func(func(*member)), depth int) []byte {
	at, n := len(dst), 0
	same(func(o *member) {
		if n > 0 {
			dst = append(dst, ',')
		}
		n++
		dst = jsonGuess(dst, o, depth)
	})
	if n > 1 {
		dst = append(slices.Insert(dst, at, '['), ']')
	}
	return dst
}

func jsonGuess(dst []byte, o *member, depth int) []byte {
	body, isMessage := guess(o.Field, depth)
	switch {
	case isMessage:
		return jsonMessage(dst, nil, body, depth+1)
	case o.Type == protowire.BytesType && isText(body):
		return appendJSONString(dst, body)
	case o.Type == protowire.BytesType:
		return jsonBytes(append(dst, `"base64:`...), body)
	case o.Type == protowire.Fixed64Type, o.Uint() > 1<<53: // exceeds what a JSON number holds exactly
		return append(strconv.AppendUint(append(dst, '"'), o.Uint(), 10), '"')
	}
	return strconv.AppendUint(dst, o.Uint(), 10)
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

// appendJSONString appends b as a JSON string. Bytes that are not UTF-8 become U+FFFD.
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
