package memory_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/memory"
)

// After a handover, a call about a removed container used to go to another runtime, and to wait for that.
func TestTheNextProcessKnowsWhoseRemovedItemsWere(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		file := memory.File{Path: filepath.Join(t.TempDir(), "beta.io.known")}
		old := memory.Open("beta.io", file)
		w := n.watch(t, func(c *memory.Config) {
			removing(c)
			c.Memory = old
		})
		n.library.with(func() { delete(n.library.books, "a") })
		require.NoError(t, w.bind(t.Context(), "a"))
		n.library.with(func() { delete(n.library.books, "b") })
		time.Sleep(5 * time.Second)
		data, err := old.Encode()
		require.NoError(t, err)
		handed, err := memory.Receive("beta.io", memory.File{}, data)
		require.NoError(t, err)
		for name, m := range map[string]*memory.Memory{"this process": nil, "a handover": handed, "the file": memory.Open("beta.io", file)} {
			if m != nil {
				w = n.watch(t, func(c *memory.Config) { c.Memory = m })
			}
			assert.True(t, w.Held("book", []byte("a")), "%s: a client has removed it", name)
			assert.True(t, w.Held("book", []byte("b")), "%s: it has vanished", name)
			assert.False(t, w.Held("book", []byte("c")), "%s: it is there", name)
			assert.False(t, w.Held("book", []byte("d")), "%s: it has never been there", name)
		}
		n.library.with(func() { n.library.books["a"] = "" })
		_, err = w.list(t, "")
		require.NoError(t, err)
		assert.False(t, w.Held("book", []byte("a")), "it is there again")
		assert.Equal(t, 1, w.Holds("book", []byte("a")))
	}, "a", "b", "c")
}
