package capture

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// criproxy moves the old file away. In a folder such as /tmp, another user may put a link in its
// place before criproxy creates the new file.
func TestCaptureDoesNotFollowALink(t *testing.T) {
	dir := t.TempDir()
	victim := filepath.Join(dir, "victim")
	require.NoError(t, os.WriteFile(victim, []byte("precious"), 0o600))
	for name, put := range map[string]func(path string) error{
		"a link to a file":    func(path string) error { return os.Symlink(victim, path) },
		"a link to nothing":   func(path string) error { return os.Symlink(filepath.Join(dir, "absent"), path) },
		"the same file":       func(path string) error { return os.Link(victim, path) },
		"a file of their own": func(path string) error { return os.WriteFile(path, nil, 0o666) },
	} {
		path := filepath.Join(dir, "calls.jsonl")
		require.NoError(t, put(path))
		_, err := createPrivate(path)
		assert.ErrorIs(t, err, os.ErrExist, name)
		require.NoError(t, os.Remove(path))
	}
	data, err := os.ReadFile(victim)
	require.NoError(t, err)
	assert.Equal(t, "precious", string(data))
	assert.NoFileExists(t, filepath.Join(dir, "absent"))

	old := syscall.Umask(0)
	defer syscall.Umask(old)
	file, err := createPrivate(filepath.Join(dir, "calls.jsonl"))
	require.NoError(t, err)
	defer file.Close()
	info, err := file.Stat()
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}
