package fence

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// numbered matches a number of things in a text that is formatted.
var numbered = regexp.MustCompile(`%d (?:[a-z]+ )?(?:arguments|backends|calls|conflicts|containers|errors|events|files|images|items|lines|links|messages|nodes|pods|processes|records|reloads|retries|runtimes|times)\b`)

// alwaysMany are numbers of at least two things.
var alwaysMany = []string{
	"why: these are %d pods", "the calls of %d nodes", "%d nodes", "all %d nodes", "%d criproxy processes",
	"of %d backends only the primary", "merged reply of %d backends",
	"under way as its limit allows", "more than %d files", "more than %d bytes or %d messages", "of %d messages only the first %d", // the number of a limit
	"%d messages were received, and %d sent on",
	"%d times", // of times, which says once and twice
}

// status said "1 calls refused" (issue 43, item 16).
func TestNumbersOfThingsHaveOnePlural(t *testing.T) {
	found, alone := 0, []string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "testing/") || strings.Contains(path, "testbed/") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			text, ok := n.(*ast.BasicLit)
			if !ok || text.Kind != token.STRING || !numbered.MatchString(text.Value) {
				return true
			}
			found++
			if !slices.ContainsFunc(alwaysMany, func(s string) bool { return strings.Contains(text.Value, s) }) {
				alone = append(alone, path+": "+text.Value)
			}
			return true
		})
		return nil
	})
	require.NoError(t, err)
	assert.Positive(t, found)
	assert.Empty(t, alone, "capture.Count says 1 pod and 2 pods")
}
