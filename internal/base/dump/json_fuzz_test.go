package dump_test

import (
	"bytes"
	"encoding/json"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/criproxy/criproxy/internal/base/dump"
	"github.com/criproxy/criproxy/internal/base/wire"
)

// FuzzJSON checks that any message becomes one JSON object, and that a valid message becomes the
// same message again if JSON can express all of it.
func FuzzJSON(f *testing.F) {
	md := top(f, fuzzSchema)
	f.Add(parse(f, md, `name: "web" secret: "s" top {name: "x" numbers: 1 numbers: -1} map {key: "a" value {real: 1}} Group {top {}} colour: RED`))
	f.Add([]byte("\x0a\x02\xff\"\x12\x03abc\x9a\x03\x01x"))
	f.Add([]byte("\x51\x00\x00\x00\x00\x00\x00\xf0\x7f\x3a\x03\x01\x02\x03"))
	f.Add([]byte("\x0a\x7fbroken"))
	f.Fuzz(func(t *testing.T, src []byte) {
		for _, md := range []protoreflect.MessageDescriptor{md, nil} {
			assert.True(t, json.Valid(dump.AppendJSON(nil, md, src)), "%s", dump.AppendJSON(nil, md, src))
		}
		was, is := dynamicpb.NewMessage(md), dynamicpb.NewMessage(md)
		if wire.Decode(src, was) != nil || !sayable(was) {
			return
		}
		var members any // of two members with one name, the last
		d := json.NewDecoder(bytes.NewReader(dump.AppendJSON(nil, md, src)))
		d.UseNumber()
		require.NoError(t, d.Decode(&members))
		text, err := json.Marshal(members)
		require.NoError(t, err)
		if err := protojson.Unmarshal(text, is); assert.NoError(t, err, "%s", text) {
			assert.True(t, proto.Equal(was, is), "%x became %s", src, text)
		}
	})
}

// sayable reports whether JSON can express all of m: its text is valid UTF-8, and it has no unknown
// fields.
func sayable(m protoreflect.Message) bool {
	good := len(m.GetUnknown()) == 0
	check := func(v any) {
		switch v := v.(type) {
		case string:
			good = good && utf8.ValidString(v)
		case protoreflect.Message:
			good = good && sayable(v)
		}
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsMap():
			v.Map().Range(func(key protoreflect.MapKey, v protoreflect.Value) bool {
				check(key.Interface())
				check(v.Interface())
				return true
			})
		case fd.IsList():
			for i := range v.List().Len() {
				check(v.List().Get(i).Interface())
			}
		default:
			check(v.Interface())
		}
		return good
	})
	return good
}
