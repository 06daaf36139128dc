package markdown_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/testing/markdown"
)

func TestTextAroundAReportStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.md")
	is := func(want string) {
		t.Helper()
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.Equal(t, want, string(got))
	}
	require.NoError(t, os.WriteFile(path, []byte("before\n<!-- a -->\nold\n<!-- b -->\nafter\n"), 0o600))
	require.NoError(t, markdown.Between(path, "<!-- a -->\n", "<!-- b -->\n", "new\n"))
	is("before\n<!-- a -->\nnew\n<!-- b -->\nafter\n")
	assert.ErrorContains(t, markdown.Between(path, "<!-- c -->\n", "<!-- b -->\n", ""), "<!-- c -->")

	require.NoError(t, os.WriteFile(path, []byte("# A\n\n## B\n\nold\n\n## C\n\nthis\n"), 0o600))
	require.NoError(t, markdown.Section(path, "B", "make b", "new\n"))
	is("# A\n\n## B\n\n`make b` made this.\n\nnew\n\n## C\n\nthis\n")
	require.NoError(t, markdown.Section(path, "D", "make d", "more\n"))
	is("# A\n\n## B\n\n`make b` made this.\n\nnew\n\n## C\n\nthis\n\n## D\n\n`make d` made this.\n\nmore\n")
}
