package plugins

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestServersAreKeptWhateverTheirFileHeld(t *testing.T) {
	path := filepath.Join(t.TempDir(), "servers.json")
	for text, mistake := range map[string]string{"{}": "", "null": "", "[]": "json: cannot unmarshal array", "": "unexpected end of JSON input"} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		s, err := readServers(path)
		if mistake == "" {
			assert.NoError(t, err, text)
		} else {
			assert.ErrorContains(t, err, "reading "+path+": "+mistake)
		}
		require.NoError(t, s.learn("plugin.json", identity{Name: "pod"}))
		s, err = readServers(path)
		require.NoError(t, err)
		assert.Equal(t, map[string]identity{"plugin.json": {Name: "pod"}}, s.seen)
	}
}
