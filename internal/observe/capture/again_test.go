package capture

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/dump"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// A file has the same events whether or not its writer knows their messages already.
func TestAMessageThatHadNoSecretsIsNotSearchedAgain(t *testing.T) {
	redactor := NewRedactor(muxtest.Library, dump.Secrets{
		Field: func(fd protoreflect.FieldDescriptor) bool { return false },
		Keys:  func(protoreflect.FieldDescriptor) []string { return []string{"password"} },
	})
	searched := map[string]int{}
	labels := redactor.concerns(muxtest.Method("Put"), Request).field(3).entry
	isSecret := labels.secret
	labels.secret = func(key []byte) bool { searched[string(key)]++; return isSecret(key) }

	rec := NewRecorder(Config{Redact: redactor, Bytes: 64 << 10})
	_, leg := rec.Begin(t.Context(), LegInfo{Method: muxtest.Method("Put"), Client: true})
	long := muxtest.Frame(t, "PutRequest", `shelf: "`+strings.Repeat("s", 20_000)+`"`).Bytes()
	leg.Request(codec.NewFrame(long))
	leg.Request(codec.NewFrame(long[:rec.ring.maxPayload])) // broken, and as what is recorded of the one before
	for range 3 {
		leg.Request(muxtest.Frame(t, "PutRequest", `labels {key: "app" value: "web"}`))
		leg.Request(muxtest.Frame(t, "PutRequest", `labels {key: "password" value: "planted"}`))
		leg.Request(muxtest.Frame(t, "PutRequest", `labels {key: "password" value: "*******"}`))
	}
	rec.Close()
	var want []Event
	for f, ev := rec.Follow(true), (Event{}); f.TryNext(&ev); {
		want = append(want, ev)
	}
	require.Equal(t, 1+2+3*3, len(want))
	assert.Equal(t, 3, searched["app"])

	clear(searched)
	path := filepath.Join(t.TempDir(), "calls.jsonl")
	w, err := Create(FileConfig{Path: path, Schema: muxtest.Library, Header: func() FileHeader { return FileHeader{Version: Version} }})
	require.NoError(t, err)
	require.NoError(t, w.Run(t.Context(), rec.Follow(true)))
	require.NoError(t, w.Close())
	assert.Equal(t, map[string]int{"app": 1, "password": 6}, searched)
	file, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.NotContains(t, string(file), "planted")
	r, err := NewReader(bytes.NewReader(file))
	require.NoError(t, err)
	for _, w := range want {
		var ev Event
		require.NoError(t, r.Next(&ev))
		assert.True(t, bytes.Equal(w.Payload, ev.Payload), "event %d", w.Seq)
		assert.Equal(t, []any{w.Seq, w.Redacted, w.Truncated}, []any{ev.Seq, ev.Redacted, ev.Truncated})
	}
}
