package rewrite_test

import (
	"bytes"
	"cmp"
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/criproxy/criproxy/rewrite"
)

// shapeSchema has every kind of field whose content a decoder checks.
const shapeSchema = `
edition = "2023";
package shape;

message Top {
  string id = 1;
  repeated Item item = 2;
  repeated int64 sizes = 3;
  repeated fixed32 fixed = 4;
  repeated double doubles = 5;
  Item group = 6 [features.message_encoding = DELIMITED];
  map<string, string> names = 7;
  map<string, Item> items = 8;
  repeated string alias = 9;
  bytes blob = 300;
  Top top = 10;
}

message Item {
  string id = 1;
  int64 size = 2;
}
`

// shapeTop has descriptors made by protobuf itself, which require text to be UTF-8.
func shapeTop(t testing.TB) protoreflect.MessageDescriptor {
	t.Helper()
	fd, err := protodesc.NewFile(protodesc.ToFileDescriptorProto(compile(t, shapeSchema)), nil)
	require.NoError(t, err)
	return fd.Messages().ByName("Top")
}

func TestAShapeFindsWhereAMessageIsBroken(t *testing.T) {
	md := shapeTop(t)
	shape := rewrite.NewShape(md)
	good := parse(t, md, `id: "a" item {id: "b" size: 7} sizes: [1, 300] fixed: [1] doubles: [1] group {id: "g"} names {key: "k" value: "v"} items {key: "i" value {id: "n"}} top {item {id: "deep"}} blob: "\377"`)
	utf8, err := shape.Check(good)
	require.NoError(t, err)
	assert.True(t, utf8)
	require.Zero(t, testing.AllocsPerRun(10, func() { _, _ = shape.Check(good) }))

	for what, broken := range map[string]string{
		"cut off inside":                       "\x12\x05\x0a\x01",
		"cut off inside of a message inside":   "\x12\x03\x0a\x05b",
		"a group that is not closed":           "\x33\x0a\x01g",
		"a group that was not open":            "\x34",
		"a field number of zero":               "\x12\x02\x00\x00",
		"a field number that is none":          "\x80\x80\x80\x80\x10\x00",
		"a list of numbers that is cut off":    "\x1a\x02\x01\x80",
		"a list of fixed numbers, cut off":     "\x22\x03\x01\x01\x01",
		"a list of doubles that is cut off":    "\x2a\x04\x01\x01\x01\x01",
		"a map whose entry is broken":          "\x3a\x03\x0a\x05k",
		"a map whose value's inside is broken": "\x42\x04\x12\x02\x0a\x05",
	} {
		_, err := shape.Check([]byte(broken))
		var bad *rewrite.MalformedError
		assert.True(t, errors.As(err, &bad), "%s: %v", what, err)
		assert.Error(t, proto.Unmarshal([]byte(broken), dynamicpb.NewMessage(md)), what)
	}
}

func TestTextThatIsNoUTF8IsMendedWhereverItIs(t *testing.T) {
	md := shapeTop(t)
	shape := rewrite.NewShape(md)
	field := func(num protowire.Number, v string) string {
		return string(protowire.AppendString(protowire.AppendTag(nil, num, protowire.BytesType), v))
	}
	in := field(1, "a\xff\xfeb\xc3") + field(2, field(1, "\xff")) + field(7, field(1, "k\xff")+field(2, "v\xff")) +
		field(8, field(1, "ü")+field(2, field(1, "\xed\xa0\x80"))) + field(9, "whole ü") + field(9, "\xff") +
		field(300, "\xff") + field(400, "\xff") + field(10, field(2, field(1, "\xff")))
	utf8, err := shape.Check([]byte(in))
	require.NoError(t, err)
	require.False(t, utf8)
	var where []string
	out, err := shape.Mend([]byte("before"), []byte(in), func(fd protoreflect.FieldDescriptor) { where = append(where, string(fd.FullName())) })
	require.NoError(t, err)
	want := field(1, "a\uFFFDb\uFFFD") + field(2, field(1, "\uFFFD")) + field(7, field(1, "k\uFFFD")+field(2, "v\uFFFD")) +
		field(8, field(1, "ü")+field(2, field(1, "\uFFFD"))) + field(9, "whole ü") + field(9, "\uFFFD") +
		field(300, "\xff") + field(400, "\xff") + field(10, field(2, field(1, "\uFFFD")))
	assert.Equal(t, "before"+want, string(out), "bytes and unknown fields are no text")
	assert.Equal(t, []string{"shape.Top.id", "shape.Item.id", "shape.Top.NamesEntry.key", "shape.Top.NamesEntry.value", "shape.Item.id", "shape.Top.alias", "shape.Item.id"}, where)
	require.NoError(t, proto.Unmarshal(out[len("before"):], dynamicpb.NewMessage(md)))
}

// FuzzShape compares the check with Go's protobuf decoder, which kubelet uses.
func FuzzShape(f *testing.F) {
	md := shapeTop(f)
	shape := rewrite.NewShape(md)
	for _, text := range []string{
		``,
		`id: "a" item {id: "b" size: 7} item {} sizes: [1, 2, 300] fixed: [1, 2] doubles: [0.5]`,
		`top {top {id: "deep" names {key: "k" value: "v"}}} group {id: "g"} items {key: "3" value {id: "n"}} blob: "\377"`,
	} {
		f.Add(parse(f, md, text))
	}
	f.Add([]byte("\x0a\x01\xff\x3a\x03\x0a\x01\xff\x1a\x01\x80"))
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > 1<<16 {
			t.Skip("larger inputs find nothing new, slowly")
		}
		utf8, err := shape.Check(in)
		decodes := proto.Unmarshal(in, dynamicpb.NewMessage(md))
		if fine := err == nil && utf8; fine != (decodes == nil) {
			t.Fatalf("%x: well-formed %v, all text UTF-8 %t, but protobuf says: %v", in, err, utf8, decodes)
		}
		for _, size := range []int{1, 3, 1000} { // in pieces the same
			c := shape.Checker()
			var pieceErr error
			for piece := range slices.Chunk(in, size) {
				if pieceErr = c.Add(piece); pieceErr != nil {
					break
				}
			}
			again, endErr := c.End()
			pieceErr = cmp.Or(pieceErr, endErr)
			if (err == nil) != (pieceErr == nil) || err == nil && utf8 != again {
				t.Fatalf("%x: %v, %t, but in pieces of %d: %v, %t", in, err, utf8, size, pieceErr, again)
			}
		}
		if err != nil {
			return
		}
		mended, err := shape.Mend(nil, in, func(protoreflect.FieldDescriptor) {})
		require.NoError(t, err)
		require.NoError(t, proto.Unmarshal(mended, dynamicpb.NewMessage(md)))
		if utf8 {
			require.True(t, bytes.Equal(in, mended), "what is UTF-8 stays as it is")
		}
	})
}
