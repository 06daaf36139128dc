// Package mounttest mounts file systems for tests.
package mounttest

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/criproxy/criproxy/internal/testing/untested"
)

// Tmpfs returns a folder with a tmpfs, mounted with options until the test ends. If the test may not
// mount, Tmpfs skips it and names what, the subject of the test. In CI the test fails instead.
func Tmpfs(t testing.TB, what, options string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tmpfs") // short, for sockets
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) }) // an error changes nothing
	err = unix.Mount("tmpfs", dir, "tmpfs", 0, options)
	if errors.Is(err, unix.EPERM) {
		untested.Skip(t, what+": only root can mount")
	}
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}
