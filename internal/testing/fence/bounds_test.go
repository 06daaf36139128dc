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

// The race detector of Go 1.26 crashes in a bubble with several processors.
func TestSimulatedClocksHaveOneProcessor(t *testing.T) {
	eachFile(t, ".go", func(path, text string) {
		assert.False(t, strings.Contains(text, "synctest"+".Test(") && path != "internal/testing/testkit/clock.go", "%s: use testkit.OnSimulatedClock", path)
	})
}
