package host_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/criproxy/criproxy/testbed/host"
)

// Otherwise, under flock(1), the last daemon would hold the lock, even after the tests have ended.
func TestDaemonsInheritNoFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "lock")
	fd, err := unix.Open(file, unix.O_CREAT|unix.O_RDWR, 0o644) // inheritable, as if a shell had opened it
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	p := host.NewProcess("sleep", filepath.Join(dir, "sleep"))
	require.NoError(t, p.Start([]string{"sleep", "60"}, os.Environ()))
	t.Cleanup(func() { assert.NoError(t, p.Kill()) })
	pid, alive := p.PID()
	require.True(t, alive)
	open, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	require.NoError(t, err)
	require.NotEmpty(t, open)
	for _, link := range open {
		target, _ := os.Readlink(link)
		assert.NotEqual(t, file, target)
	}
}
