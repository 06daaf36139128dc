package capture_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/dump"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// secrets hides titles, colours, and labels of two names.
var secrets = dump.Secrets{
	Field: func(fd protoreflect.FieldDescriptor) bool {
		return fd.FullName() == "library.v1.Book.title" || fd.FullName() == "library.v1.Book.colour"
	},
	Keys: func(fd protoreflect.FieldDescriptor) []string {
		if fd.Name() == "labels" {
			return []string{"password", "*.token"}
		}
		return nil
	},
}

var redactor = capture.NewRedactor(muxtest.Library, secrets)

func TestSecretsAreOverwrittenInEqualLength(t *testing.T) {
	for _, c := range []struct{ method, message, in, want string }{
		{"Put", "PutRequest", `book {id: "7f" title: "planted"} shelf: "a"`, `book {id: "7f" title: "*******"} shelf: "a"`},
		{"Put", "PutRequest", `book {quotes {quotes {title: "planted" id: "1"}} quotes {title: "x"}}`, `book {quotes {quotes {id: "1" title: "*******"}} quotes {title: "*"}}`},
		{"Put", "PutRequest", `book {colour: BLUE}`, `book {colour: RED}`},
		{"Put", "PutRequest", `labels {key: "password" value: "planted"} labels {key: "a.token" value: "planted"} labels {key: "app" value: "web"}`,
			`labels["a.token"]: "*******" labels["app"]: "web" labels["password"]: "*******"`},
		{"Get", "GetRequest", `book_id: "7f"`, `book_id: "7f"`},
	} {
		b := bytes.Clone(muxtest.Frame(t, c.message, c.in).Bytes())
		n := len(b)
		_, ok := redactor.Message(muxtest.Method(c.method), capture.Request, b)
		require.True(t, ok)
		assert.Len(t, b, n)
		assert.NotContains(t, string(b), "planted")
		assert.Equal(t, c.want, string(dump.Text{Unsafe: true}.Append(nil, muxtest.Message(c.message), b)))
	}
}

// A newer version of a message with secrets may have further secrets. Other additions of a newer API
// are shown.
func TestUnknownFieldsAreSecretOnlyBesideSecrets(t *testing.T) {
	newer := func(text, inside string) []byte {
		book := append(muxtest.Frame(t, "Book", `id: "7f"`).Bytes(), "\xba\x06\x07"+inside+"\xc0\x06\x2a"...) // fields 103 and 104
		b := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), book)
		return protowire.AppendString(protowire.AppendTag(b, 77, protowire.BytesType), text)
	}
	b := newer("new-one", "planted")
	assert.NotContains(t, string(secrets.Text().Append(nil, muxtest.Message("PutRequest"), b)), "planted", "as it is printed")
	_, ok := redactor.Message(muxtest.Method("Put"), capture.Request, b)
	require.True(t, ok)
	want := bytes.Replace(newer("new-one", "*******"), []byte{0xc0, 6, 42}, []byte{0xc0, 6, 0}, 1)
	assert.Equal(t, want, b)

	b = []byte("\x0a\x07new-one")
	_, ok = redactor.Message("/library.v1.Library/NewOne", capture.Request, b)
	require.True(t, ok)
	assert.Equal(t, "\x0a\x07new-one", string(b), "an unknown method")
}

func TestARecordingHasNoSecretsUnlessAskedFor(t *testing.T) {
	for _, unsafe := range []bool{false, true} {
		rec := capture.NewRecorder(capture.Config{Redact: redactor, UnsafeRaw: unsafe, Bytes: 64 << 10})
		_, leg := rec.Begin(t.Context(), capture.LegInfo{Method: muxtest.Method("Put"), Client: true,
			Metadata: metadata.Pairs("authorization", "Bearer planted", "x-auth-token", "planted", "app", "web")})
		leg.Request(muxtest.Frame(t, "PutRequest", `book {title: "planted"}`))
		leg.Request(codec.NewFrame([]byte("\x0a\x7fplanted, in a message that is broken")))
		leg.Request(muxtest.Frame(t, "PutRequest", `book {title: "`+strings.Repeat("planted", 10_000)+`"}`)) // which is cut
		leg.Reply(muxtest.Frame(t, "Book", `title: "planted"`))
		leg.Header(metadata.Pairs("set-cookie", "planted"))
		leg.End(nil, metadata.Pairs("my-password", "planted"))
		all := recorded(t, rec)
		for _, f := range capture.Formats {
			file := encode(t, f, all)
			assert.Equal(t, unsafe, bytes.Contains(file, []byte("planted")), "%s, unsafe %v", f, unsafe)
			assert.Contains(t, string(file), "web")
		}
		hidden := 0
		for _, ev := range all {
			if ev.Redacted {
				hidden++
			}
		}
		if unsafe {
			assert.Zero(t, hidden)
		} else {
			assert.Equal(t, 7, hidden)
		}
	}
}

// Redact never changes fields that are not secret.
func FuzzRedact(f *testing.F) {
	f.Add(muxtest.Frame(f, "PutRequest", `book {id: "7f" title: "T" quotes {title: "Q" colour: BLUE} labels {key: "password" value: "p"}} shelf: "s" labels {key: "a.token" value: "v"}`).Bytes())
	f.Add([]byte("\x0a\x7fbroken"))
	f.Add([]byte("\x0a\x04\x12\x80\x80\x01\x2b\x13\x14\x2c"))
	f.Fuzz(func(t *testing.T, b []byte) {
		text := secrets.Text()
		was := string(text.Append(nil, muxtest.Message("PutRequest"), b))
		got := bytes.Clone(b)
		_, ok := redactor.Message(muxtest.Method("Put"), capture.Request, got)
		require.Len(t, got, len(b))
		if !ok {
			return // the message is dropped
		}
		require.Equal(t, was, string(text.Append(nil, muxtest.Message("PutRequest"), got)))
		again := bytes.Clone(got)
		_, ok = redactor.Message(muxtest.Method("Put"), capture.Request, again)
		require.True(t, ok)
		require.Equal(t, got, again)
	})
}
