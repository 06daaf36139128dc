package director

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/profile"
)

// FuzzProfile checks that a profile is either accepted or refused with a reason, and that the search for further mistakes
// in a wrong one does not panic.
func FuzzProfile(f *testing.F) {
	library, err := codec.CompileProto(f.Context(), nil, "../internal/testing/muxtest/library.proto")
	require.NoError(f, err)
	for _, text := range []string{
		"versions:\n  - package: library.v1\nnames:\n  book: {front: \"{backend}__{name}\", bare: primary}\nfields:\n  Book.id: book\n",
		"methods:\n  List|Stream: {all: concat}\n  Browse: {all: pages, pages: {token: token, size: size, next: next, items: books}}\n",
		"methods: {Put: {choose: [{backend: 'labels[\"backend\"]'}]}}", "versions: [{package: a, methods: {x: y}}]", "a: &a [*a]", "{", "- - -", "names: {x: }",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := ParseProfile(data)
		if err != nil {
			require.NotEmpty(t, err.Error())
		}
		if p == nil {
			return
		}
		_ = p.Misfits(library)
		_, err = New(Config{Profile: p, Schema: library, Backends: []Backend{{}, {Name: "beta.io"}}})
		if err != nil {
			require.NotEmpty(t, err.Error())
		}
	})
}

// FuzzNames checks that the front name of any back name leads to its backend, and
// translates back to the same name.
func FuzzNames(f *testing.F) {
	f.Add("beta.io", []byte("7f"))
	f.Add("beta.io", []byte("beta.io__7f"))
	f.Add("a_b", []byte("__"))
	f.Add("a", []byte("_/_\x00\xff"))
	f.Fuzz(func(t *testing.T, name string, back []byte) {
		if profile.CheckBackendName(name) != nil || name == "" || len(back) == 0 {
			return
		}
		backends := []Backend{{}, {Name: name}, {Name: name + ".other"}}
		for _, sep := range []string{"__", "/"} {
			n := prefixed("kind", sep, sep == "__", backends, nil)
			for i := range backends {
				front := n.toFront(nil, back, i)
				if i > 0 {
					owner, v := n.owner(context.Background(), front)
					assert.Equal(t, decided, v)
					assert.Equal(t, i, owner, "%q", front)
				}
				assert.Equal(t, string(back), string(n.toBack(nil, front, i)), "%q", front)
			}
		}
	})
}
