package fence

import (
	"go/ast"
	"go/parser"
	"go/token"
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
	eachFile(t, ".go", func(path, text string) {
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, text, 0)
		require.NoError(t, err)
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
	})
	assert.Positive(t, found)
}
