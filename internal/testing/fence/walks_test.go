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
	all := allTests(t)
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

// Each test that the Makefile runs, or leaves out, by its name exists: go test passes if it finds none.
func TestTheMakefileNamesTestsThatExist(t *testing.T) {
	tests := strings.ReplaceAll(strings.Join(regexp.MustCompile(`(?m)^func Test\w+`).FindAllString(allTests(t), -1), "\n"), "func ", "")
	patterns := regexp.MustCompile(`(?m)(?:-(?:run|skip) |^(?:COMPUTES|ARM64_\w+) := )'?([^'\s]+)`)
	for _, file := range []string{"Makefile", ".ci/next"} {
		text, err := os.ReadFile(filepath.Join(root, file))
		require.NoError(t, err)
		found := patterns.FindAllStringSubmatch(strings.ReplaceAll(string(text), "$$", "$"), -1)
		require.NotEmpty(t, found, file)
		for _, match := range found {
			for name := range strings.SplitSeq(match[1], "|") {
				if name != "^$" && !strings.HasPrefix(name, "$(") { // none, and a variable, whose names are found by themselves
					assert.True(t, regexp.MustCompile("(?m)"+name).MatchString(tests), "%s names %s: there is no such test", file, name)
				}
			}
		}
	}
}

// allTests returns all test files of the repository, the testbed's too.
func allTests(t *testing.T) string {
	var all strings.Builder
	eachFile(t, "_test.go", func(_, text string) { all.WriteString(text) })
	return all.String()
}
