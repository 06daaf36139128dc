package fence

import (
	"go/parser"
	"go/token"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/testing/endless"
)

// A test that waits for ever takes its package's whole time, and says nothing (issue 44). The testbed holds this itself.
func TestNoTestWaitsForEver(t *testing.T) {
	eachFile(t, "_test.go", func(path, text string) {
		if strings.HasPrefix(path, "testbed/") {
			return
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, text, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, w := range endless.Waits(file) { // what a test has started it ends
			assert.True(t, w.Started, "%s: %s may wait for ever: %s", files.Position(w.Pos), w.Function, w.Cure)
		}
	})
}
