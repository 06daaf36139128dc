package capture_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/criproxy/criproxy/internal/base/dump"
	"github.com/criproxy/criproxy/internal/base/wire"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

func TestSecretsAreNotInHiddenReplies(t *testing.T) {
	for in, want := range map[string]string{
		`books {id: "7f" title: "planted" quotes {title: "planted" id: "1" quotes {colour: BLUE}}}`:                                            `books {id: "7f" quotes {id: "1" quotes {}}}`,
		`books {labels {key: "password" value: "planted"} labels {key: "a.token" value: "planted"} labels {key: "app" value: "web"}} books {}`: `books {labels["app"]: "web"} books {}`,
		`books {id: "7f" quotes {id: "1"}}`: `books {id: "7f" quotes {id: "1"}}`,
		``:                                  ``,
	} {
		got, err := redactor.HideReply([]byte("before"), muxtest.Method("List"), muxtest.Frame(t, "ListResponse", in).Bytes())
		require.NoError(t, err)
		assert.Equal(t, want, string(dump.Text{Unsafe: true}.Append(nil, muxtest.Message("ListResponse"), got[len("before"):])))
	}
	book := append(muxtest.Frame(t, "Book", `id: "7f"`).Bytes(), "\xba\x06\x07planted\xc0\x06\x2a"...) // fields 103 and 104
	b := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), book)
	got, err := redactor.HideReply(nil, muxtest.Method("List"), append(b, "\x22\x07new-one"...))
	require.NoError(t, err)
	assert.Equal(t, "\x0a\x04\x0a\x027f\x22\x07new-one", string(got), "an unknown field is hidden only in a message that has secrets")

	for _, broken := range []string{"\x0a\x7f", "\x0a\x02\x0a\x05", "\x0a\x04\x22\x02\x0a\x05"} {
		_, err := redactor.HideReply(nil, muxtest.Method("List"), []byte(broken))
		assert.Error(t, err, "%q", broken)
	}
	assert.False(t, redactor.HasSecrets(muxtest.Method("Version")))
	got, err = redactor.HideReply(nil, muxtest.Method("Version"), []byte("\x0a\x7f"))
	require.NoError(t, err)
	assert.Equal(t, "\x0a\x7f", string(got), "a method without fields to hide is not searched")
}

// FuzzHide compares HideReply with decoding the message and clearing its secrets.
func FuzzHide(f *testing.F) {
	md := muxtest.Message("ListResponse")
	for seed := range uint64(10) {
		f.Add(muxtest.Random(rand.New(rand.NewPCG(seed, seed)), md))
	}
	r := capture.NewRedactor(muxtest.Library, secrets)
	f.Fuzz(func(t *testing.T, in []byte) {
		want := dynamicpb.NewMessage(md)
		if wire.Decode(in, want) != nil || len(in) > 1<<16 {
			return
		}
		out, err := r.HideReply(nil, muxtest.Method("List"), in)
		if err != nil {
			return // nested deeper than any real message
		}
		got := dynamicpb.NewMessage(md)
		require.NoError(t, wire.Decode(out, got), "%x became %x", in, out)
		clearSecrets(want)
		clearMistyped(want)
		clearMistyped(got)
		if !proto.Equal(want, got) {
			t.Fatalf("in %x\ngot  %v\nwant %v", in, got, want)
		}
	})
}

// clearMistyped clears unknown fields that have the number of a known field but another wire type: a
// decoder does not read them as that field, and HideReply may hide more of them than necessary.
func clearMistyped(m protoreflect.Message) {
	var rest []byte
	for unknown := m.GetUnknown(); len(unknown) > 0; {
		num, _, n := protowire.ConsumeField(unknown)
		if m.Descriptor().Fields().ByNumber(num) == nil {
			rest = append(rest, unknown[:n]...)
		}
		unknown = unknown[n:]
	}
	m.SetUnknown(rest)
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if fd.IsList() && fd.Message() != nil {
			for i := range v.List().Len() {
				clearMistyped(v.List().Get(i).Message())
			}
		}
		return true
	})
}

func clearSecrets(m protoreflect.Message) {
	if secrets.Text().HidesUnknown(m.Descriptor()) {
		m.SetUnknown(nil)
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case secrets.HasField(fd):
			m.Clear(fd)
		case fd.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
				if secrets.HasKey(fd, []byte(k.String())) {
					v.Map().Clear(k)
				}
				return true
			})
		case fd.IsList() && fd.Message() != nil:
			for i := range v.List().Len() {
				clearSecrets(v.List().Get(i).Message())
			}
		case fd.Message() != nil:
			clearSecrets(v.Message())
		}
		return true
	})
}
