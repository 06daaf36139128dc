package cli

import (
	"bytes"
	"io"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Of a criproxy that does not run, it listed twelve errors, and then called the bundle complete.
func TestABundleThatLacksPartsIsNotComplete(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "x.tar.gz")
	var out bytes.Buffer
	require.NoError(t, Support(t.Context(), []string{"-admin", filepath.Join(dir, "none.sock"), file}, &out, io.Discard))
	assert.Regexp(t, `x\.tar\.gz lacks 1\d of its 14 parts`, out.String())
	assert.NotContains(t, out.String(), "is complete")
	assert.FileExists(t, file)
}
