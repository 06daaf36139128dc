package rewrite_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/rewrite"
)

// FuzzPath checks that ParsePath either refuses a text or makes a path that finds again what it
// put into a message, and that a path never panics, whatever the bytes.
func FuzzPath(f *testing.F) {
	md := compile(f, fuzzSchema).Messages().ByName("Top")
	for _, path := range []string{`id`, `names["a.b/c"]`, `names[""]`, `top.top.id`, `item.id`, `numbered[3].id`, `names["\""]`, `top.`, `[`, `names["`} {
		f.Add(path, []byte("value"), []byte("\x0a\x01x"))
	}
	f.Fuzz(func(t *testing.T, text string, value, message []byte) {
		p, err := rewrite.ParsePath(md, text)
		if err != nil {
			require.NotEmpty(t, err.Error())
			return
		}
		_, _, _ = p.Lookup(message)
		_ = p.All(message, func([]byte) error { return nil })
		if p.IsText() {
			got, found, err := p.Lookup(p.Append(nil, value))
			require.NoError(t, err)
			require.True(t, found, text)
			require.Equal(t, string(value), string(got), text)
		}
	})
}
