package fence

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A program that reads our JSON must know the unit of a number.
func TestDurationsInJSONSayTheirUnit(t *testing.T) {
	key := regexp.MustCompile(`json:"([^",]+)`)
	found := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			field, ok := n.(*ast.Field)
			if !ok || field.Tag == nil {
				return true
			}
			typ, ok := field.Type.(*ast.SelectorExpr)
			if !ok || typ.Sel.Name != "Duration" {
				return true
			}
			if m := key.FindStringSubmatch(field.Tag.Value); m != nil {
				found++
				assert.True(t, strings.HasSuffix(m[1], "Ns") || strings.HasSuffix(m[1], "_ns"), "%s: %s is a duration: want %[2]sNs", path, m[1])
			}
			return true
		})
		return nil
	})
	require.NoError(t, err)
	assert.Positive(t, found)
}
