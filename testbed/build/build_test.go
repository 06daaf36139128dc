package build

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestKubernetesVersionsMatch(t *testing.T) {
	source, err := SourceDir()
	require.NoError(t, err)
	c, err := componentNamed(Kubelet)
	require.NoError(t, err)
	version, err := c.version(source)
	require.NoError(t, err)
	mod, err := os.ReadFile(filepath.Join(source, c.dir, "go.mod"))
	require.NoError(t, err)
	part := strings.Replace(version, "v1.", "v0.", 1)
	n := 0
	for line := range strings.Lines(string(mod)) {
		if name, with, ok := strings.Cut(strings.TrimSpace(line), " => "); ok {
			assert.Equal(t, name+" "+part, with)
			n++
		}
	}
	assert.Greater(t, n, 30)
}
