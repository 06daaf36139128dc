package backend

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestThisVersionReadsCachesOfReleases(t *testing.T) {
	files, err := filepath.Glob("../../testdata/compat/*/state/*.known")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, path := range files {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		content, err := decodeFile(data)
		require.NoError(t, err, path)
		require.NotEmpty(t, content.Lists, path)
		bytes := 0
		for _, l := range content.Lists {
			bytes += len(l.Reply)
		}
		assert.Positive(t, bytes, path)
		assert.NotEmpty(t, content.BootID, path)
	}
}
