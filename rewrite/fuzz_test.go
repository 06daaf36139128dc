package rewrite_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/criproxy/criproxy/internal/base/wire"
	"github.com/criproxy/criproxy/rewrite"
)

// fuzzSchema has every shape a field can have. It does not require UTF-8, so that
// every message that is valid on the wire is valid to it.
const fuzzSchema = `
edition = "2023";
package fuzz;
option features.utf8_validation = NONE;
option features.field_presence = IMPLICIT;

message Top {
  string id = 1;
  repeated Item item = 2;
  int64 size = 3;
  Top top = 4;
  Item group = 5 [features.message_encoding = DELIMITED];
  map<string, string> names = 6;
  map<int32, Item> numbered = 7;
  repeated string alias = 8;
  bytes blob = 300;
  oneof one { string left = 10; Item right = 11; }
}

message Item {
  string id = 1;
  string plain = 2;
  int64 size = 3;
}
`

var fuzzRules = []rewrite.Rule{
	{Field: "*.id", Class: 1},
	{Field: "Top.names", Class: 1},
	{Field: "Top.alias", Class: 1},
	{Field: "Top.blob", Class: 1},
	{Field: "Top.left", Class: 1},
}

// FuzzApply compares the wire loop with a plain implementation that decodes the
// message, edits it through protoreflect and encodes it.
func FuzzApply(f *testing.F) {
	md := compile(f, fuzzSchema).Messages().ByName("Top")
	classes, err := rewrite.Classify([]protoreflect.MessageDescriptor{md}, fuzzRules)
	require.NoError(f, err)
	plan := classes.Plan(md)

	for _, text := range []string{
		``,
		`id: "a" item {id: "b" plain: "c" size: 7} item {} size: -1`,
		`top {top {id: "deep" names {key: "k" value: "v"}}} group {id: "g"} numbered {key: 3 value {id: "n"}}`,
		`alias: "x" alias: "" blob: "\377\376" right {id: "r"}`,
	} {
		f.Add(parse(f, md, text), []byte("beta.io__"))
	}
	f.Add([]byte("\x0a\x82\x80\x00ab\x12\x00\xa3\x06\x0a\x00\xa4\x06\x2b\x0a\x01x\x2c"), bytes.Repeat([]byte("x"), 130))

	f.Fuzz(func(t *testing.T, in, prefix []byte) {
		if len(in) > 1<<16 || len(prefix) > 1<<15 {
			t.Skip("larger inputs find nothing new, slowly")
		}
		reference := dynamicpb.NewMessage(md)
		decodeErr := wire.Decode(in, reference)

		same, err := plan.Apply(nil, in, identity)
		if err != nil {
			if decodeErr == nil {
				t.Fatalf("refused what protobuf takes: %v", err)
			}
			return
		}
		if !bytes.Equal(same, in) {
			t.Fatalf("an edit that changes nothing changed %x to %x", in, same)
		}
		got, err := plan.Apply([]byte("before"), in, func(dst []byte, _ rewrite.Class, v []byte) ([]byte, error) {
			if len(v) == 0 {
				return dst, nil // the reference cannot tell it from an absent one
			}
			return append(append(dst, prefix...), v...), nil
		})
		require.NoError(t, err)
		got = bytes.TrimPrefix(got, []byte("before"))
		found, err := plan.Find(nil, in)
		require.NoError(t, err)
		if decodeErr != nil {
			return // malformed where no rule looks: the plan copies it as it is
		}
		edited := dynamicpb.NewMessage(md)
		if err := wire.Decode(got, edited); err != nil {
			t.Fatalf("made %x of %x: %v", got, in, err)
		}
		n := editReference(reference, classes, prefix)
		if !proto.Equal(reference, edited) {
			t.Fatalf("in %x\ngot  %v\nwant %v", in, edited, reference)
		}
		if n > len(found) {
			t.Fatalf("found %d of %d classified fields", len(found), n)
		}
	})
}

// editReference puts prefix before every classified value that m has, and
// returns how many there are. It counts a field that is on the wire more than once as one value.
func editReference(m protoreflect.Message, classes *rewrite.Classes, prefix []byte) (n int) {
	edited := func(fd protoreflect.FieldDescriptor, v protoreflect.Value) protoreflect.Value {
		if fd.Kind() == protoreflect.BytesKind && len(v.Bytes()) == 0 || fd.Kind() == protoreflect.StringKind && v.String() == "" {
			return v
		}
		n++
		if fd.Kind() == protoreflect.BytesKind {
			return protoreflect.ValueOfBytes(append(bytes.Clone(prefix), v.Bytes()...))
		}
		return protoreflect.ValueOfString(string(prefix) + v.String())
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		classified := classes.Of(fd) != 0
		switch {
		case fd.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, e protoreflect.Value) bool {
				if classified {
					v.Map().Set(k, edited(fd.MapValue(), e))
				} else if fd.MapValue().Message() != nil {
					n += editReference(e.Message(), classes, prefix)
				}
				return true
			})
		case fd.IsList():
			for i := range v.List().Len() {
				if classified {
					v.List().Set(i, edited(fd, v.List().Get(i)))
				} else if fd.Message() != nil {
					n += editReference(v.List().Get(i).Message(), classes, prefix)
				}
			}
		case classified:
			m.Set(fd, edited(fd, v))
		case fd.Message() != nil:
			n += editReference(v.Message(), classes, prefix)
		}
		return true
	})
	return n
}
