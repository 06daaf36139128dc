package fence

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every file that docs/architecture.md names with its folder exists.
func TestArchitectureNamesFilesThatExist(t *testing.T) {
	data, err := os.ReadFile(architecture)
	require.NoError(t, err)
	named := regexp.MustCompile("`([A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)+\\.(?:go|yaml|js|md|proto))`").FindAllStringSubmatch(string(data), -1)
	require.NotEmpty(t, named)
	for _, m := range named {
		if strings.HasPrefix(m[1], "page/") { // of internal/observe/page
			m[1] = "internal/observe/page/" + m[1]
		}
		assert.FileExists(t, filepath.Join(root, m[1]))
	}
}

// Each test that the docs name exists.
func TestDocsNameTestsThatExist(t *testing.T) {
	var sources strings.Builder
	eachFile(t, "_test.go", func(_, text string) { sources.WriteString(text) })
	all := sources.String()
	for _, doc := range []string{"security.md", "evidence/robustness.md"} {
		data, err := os.ReadFile(filepath.Join(root, "docs", doc))
		require.NoError(t, err)
		names := regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w{5,}`).FindAllString(string(data), -1)
		require.NotEmpty(t, names)
		for _, name := range names {
			assert.Contains(t, all, "func "+name, "%s", doc) // or a longer name, as with -run
		}
	}
}
