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

// A walk is a numbered list in docs/architecture.md whose steps name files.
func TestWalksOfArchitectureAreShort(t *testing.T) {
	data, err := os.ReadFile(architecture)
	require.NoError(t, err)
	var (
		step      = regexp.MustCompile(`^(\d+\. |   )`)
		path      = regexp.MustCompile("`([a-z/]+\\.go)`")
		inWalk    = map[string]string{} // :: file → title of its walk
		walks     = map[string]int{}    // :: title → files
		title, on = "", false
	)
	for line := range strings.Lines(string(data)) {
		if t, ok := strings.CutPrefix(line, "## "); ok {
			title, on = strings.TrimSpace(t), false
		}
		on = strings.HasPrefix(line, "1. ") || on && step.MatchString(line)
		if !on {
			continue
		}
		for _, m := range path.FindAllStringSubmatch(line, -1) {
			assert.FileExists(t, filepath.Join(root, m[1]), title)
			assert.Empty(t, inWalk[m[1]], "%s is in two steps of walks: of %q, and of this", m[1], title)
			inWalk[m[1]] = title
			walks[title]++
		}
	}
	assert.Len(t, walks, 5, "a call, a reload, a handover, an outage, a tail: %v", walks)
	for title, files := range walks {
		assert.LessOrEqual(t, files, 8, "files of the walk %q", title)
	}
}

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
