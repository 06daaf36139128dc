package cli

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// Only the folder of the path itself was watched: the file that a symbolic link names changed, and nothing happened. See issue
// 40.
func TestAConfigurationIsWatchedAtEachLevelOfLinks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, folder := range []string{"etc", "opt/v1", "opt/v2"} {
		require.NoError(t, os.MkdirAll(at(folder), 0o700))
	}
	require.NoError(t, os.Symlink("../opt/current/c.yaml", at("etc/c.yaml")))
	require.NoError(t, os.Symlink("v1", at("opt/current")))
	w, err := fsnotify.NewWatcher()
	require.NoError(t, err)
	defer w.Close()
	seen := func(what string, change func() error) {
		t.Helper()
		require.NoError(t, watchLinks(w, at("etc/c.yaml")))
		for len(w.Events) > 0 {
			<-w.Events
		}
		require.NoError(t, change())
		select {
		case <-w.Events:
		case <-time.After(testkit.Patience):
			require.Fail(t, what+": nothing is noticed")
		}
	}
	write := func(file string) func() error {
		return func() error { return os.WriteFile(at(file), []byte(t.Name()), 0o600) }
	}
	seen("the file is made", write("opt/v1/c.yaml"))
	seen("the file changes", write("opt/v1/c.yaml"))
	require.NoError(t, write("opt/v2/c.yaml")())
	require.NoError(t, os.Symlink("v2", at("opt/next")))
	seen("a folder is replaced", func() error { return os.Rename(at("opt/next"), at("opt/current")) })
	seen("the new file changes", write("opt/v2/c.yaml"))
	require.NotContains(t, w.WatchList(), at("opt/v1"), "it is no longer on the way")
	seen("a file takes the link's place", func() error { return os.Rename(at("opt/v1/c.yaml"), at("etc/c.yaml")) })
}
