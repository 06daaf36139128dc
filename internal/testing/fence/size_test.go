package fence

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/testing/markdown"
)

const sizes = root + "/docs/evidence/size.md"

var blockComment = regexp.MustCompile(`(?s)/\*.*?\*/`)

// linesOf counts the lines of code of a package: those that are neither blank nor a comment, without tests and generated
// code.
func linesOf(t *testing.T, pkg string) (n int) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, pkg, "*.go"))
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		if strings.HasSuffix(file, "_test.go") || bytes.Contains(text[:min(len(text), 400)], []byte("Code generated")) {
			continue
		}
		for line := range bytes.Lines(blockComment.ReplaceAll(text, nil)) {
			if line = bytes.TrimSpace(line); len(line) > 0 && !bytes.HasPrefix(line, []byte("//")) {
				n++
			}
		}
	}
	return n
}

// The numbers are those of the latest -update: most changes change one, and need not change the table.
func TestTheTableOfSizesHasEachPackage(t *testing.T) {
	lines := map[string]int{}
	for _, r := range rooms(t) {
		lines[r.name] = linesOf(t, r.name)
	}
	if *update {
		byWing := map[string]int{}
		for name, n := range lines {
			byWing[wingOf(name)] += n
		}
		total, table := 0, "| package | lines of code |\n|---|---:|\n"
		for _, wing := range slices.Sorted(maps.Keys(byWing)) {
			total += byWing[wing]
			table += fmt.Sprintf("| **%s** | **%d** |\n", wing, byWing[wing])
			for _, name := range slices.Sorted(maps.Keys(lines)) {
				if wingOf(name) == wing && name != wing {
					table += fmt.Sprintf("| `%s` | %d |\n", name, lines[name])
				}
			}
		}
		require.NoError(t, markdown.Between(sizes, tableBegin, tableEnd, table+fmt.Sprintf("| **all** | **%d** |\n", total)))
	}
	text, err := os.ReadFile(sizes)
	require.NoError(t, err)
	for name, n := range lines {
		assert.Positive(t, n, name)
		assert.True(t, strings.Contains(string(text), "| `"+name+"` | ") || strings.Contains(string(text), "| **"+name+"** | "), "%s has no row: go test ./internal/testing/fence -update", name)
	}
}
