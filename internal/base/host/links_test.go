package host

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTheFoldersOfAPathAreThoseOfItsLinks(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, folder := range []string{"etc", "opt/v1", "opt/v2"} {
		require.NoError(t, os.MkdirAll(at(folder), 0o700))
	}
	require.NoError(t, os.WriteFile(at("opt/v1/real.yaml"), nil, 0o600))
	for link, to := range map[string]string{"etc/c.yaml": "../opt/current/c.yaml", "opt/current": at("opt/v1"), "opt/v1/c.yaml": "./real.yaml", "etc/loop": "loop", "etc/gone": "../none/c.yaml"} {
		require.NoError(t, os.Symlink(to, at(link)))
	}
	assert.Equal(t, []string{at("etc"), at("opt"), at("opt/v1")}, Folders(at("etc/c.yaml")))
	assert.Equal(t, []string{at("opt/v1")}, Folders(at("opt/v1/real.yaml")), "no link")
	assert.Equal(t, []string{at("etc"), dir}, Folders(at("etc/gone")))
	assert.Equal(t, []string{at("opt")}, Folders(at("opt/none/c.yaml")))
	assert.Equal(t, []string{at("etc")}, Folders(at("etc/loop")))
}
