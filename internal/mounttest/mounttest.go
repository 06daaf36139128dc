// Package mounttest gives tests a file system of their own.
package mounttest

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Tmpfs returns a folder that is a tmpfs mounted with options, until the test ends. Where
// that is not allowed the test is left out, for what it says it needs it for; in CI it fails.
func Tmpfs(t testing.TB, what, options string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tmpfs") // short, for sockets
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) }) // nothing is left to be done
	err = unix.Mount("tmpfs", dir, "tmpfs", 0, options)
	if errors.Is(err, unix.EPERM) {
		require.Empty(t, os.Getenv("CI"), "only root can mount")
		t.Skipf("NOT TESTED: %s; only root can mount", what)
	}
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}
