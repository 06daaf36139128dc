package dump_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/internal/base/dump"
)

const fuzzSchema = `
syntax = "proto2";
message Top {
  optional string name = 1;
  optional bytes secret = 2 [debug_redact = true];
  optional Top top = 3;
  repeated Top list = 4;
  map<string, Top> map = 5;
  optional group Group = 6 { optional string secret = 2 [debug_redact = true]; optional Top top = 3; }
  repeated sint32 numbers = 7 [packed = true];
  map<int32, bytes> secrets = 8 [debug_redact = true];
  optional Colour colour = 9;
  optional double real = 10;
}
enum Colour { RED = 0; }
`

// The ways to wrap a message of type Top in another one.
var wraps = []func(b []byte) []byte{
	func(b []byte) []byte { return b },
	func(b []byte) []byte { return field(3, b) },
	func(b []byte) []byte { return field(4, b) },
	func(b []byte) []byte { return field(5, append(field(1, []byte("key")), field(2, b)...)) },
	func(b []byte) []byte { return field(5, append(field(2, b), field(1, []byte("key"))...)) },
	func(b []byte) []byte { return protowire.AppendTag(append([]byte{6<<3 | 3}, field(3, b)...), 6, 4) },
}

// The ways to hide a secret in a message of type Top, among them some that its
// schema does not allow.
var plants = []func(secret []byte) []byte{
	func(secret []byte) []byte { return field(2, secret) },
	func(secret []byte) []byte { return field(8, secret) },
	func(secret []byte) []byte { return field(8, field(2, secret)) },
	func(secret []byte) []byte {
		return protowire.AppendTag(append([]byte{2<<3 | 3}, field(1, secret)...), 2, 4)
	},
	func(secret []byte) []byte {
		return protowire.AppendTag(append([]byte{6<<3 | 3}, field(2, secret)...), 6, 4)
	},
}

func field(num protowire.Number, b []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), b)
}

// FuzzText checks that printing never fails, and that the output does not depend on the content of a
// secret field, whatever surrounds it. (The fields before it must be whole, or the secret would be a
// part of them.)
func FuzzText(f *testing.F) {
	md := top(f, fuzzSchema)
	valid := parse(f, md, `name: "web" top {name: "x" numbers: 1 numbers: -1} map {key: "a" value {real: 1}} Group {top {}} colour: RED`)
	f.Add([]byte{}, []byte("hunter22"), []byte{}, byte(0), byte(0), uint8(0))
	f.Add(valid, []byte("hunter22"), valid, byte(1), byte(1), uint8(4))
	f.Add([]byte("\x9a\x03\x03abc"), []byte("\x0a\x08hunter22"), []byte("\x0a\x05abc"), byte(3), byte(3), uint8(0))
	f.Add([]byte("\x08\x01"), []byte("\x08\x01"), []byte("\xa3\x06\x0a\x00"), byte(5), byte(2), uint8(1))
	for i := range wraps {
		for j := range plants {
			f.Add(valid, []byte("correct horse"), []byte("\xff"), byte(i), byte(j), uint8(i))
		}
	}
	f.Fuzz(func(t *testing.T, before, secret, after []byte, wrap, plant byte, limit uint8) {
		text := dump.Text{MaxValue: int(limit)}
		for _, b := range [][]byte{before, secret, after} {
			for _, md := range []protoreflect.MessageDescriptor{md, nil} {
				text.Append(nil, md, b)
				dump.Text{Unsafe: true}.Append(nil, md, b)
			}
		}
		if !whole(before) {
			return
		}
		hide := func(secret []byte) string {
			b := append(append([]byte{}, before...), plants[int(plant)%len(plants)](secret)...)
			b = wraps[int(wrap)%len(wraps)](append(b, after...))
			return string(text.Append(nil, md, b))
		}
		assert.Equal(t, hide(nil), hide(secret))
	})
}

// whole reports whether b is a sequence of fields.
func whole(b []byte) bool {
	for len(b) > 0 {
		_, _, n := protowire.ConsumeField(b)
		if n < 0 {
			return false
		}
		b = b[n:]
	}
	return true
}
