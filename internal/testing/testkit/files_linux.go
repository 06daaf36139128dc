package testkit

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/testing/mounttest"
)

func OpenFiles(t testing.TB, pid int) int {
	t.Helper()
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	require.NoError(t, err)
	return len(all)
}

// SmallDisk returns a folder with room for 256 KiB, and a function that fills it up.
func SmallDisk(t testing.TB) (dir string, fill func()) {
	t.Helper()
	dir = mounttest.Tmpfs(t, "full disks", "size=256k,mode=0700")
	return dir, func() {
		f, err := os.Create(filepath.Join(dir, "ballast"))
		require.NoError(t, err)
		defer f.Close() // may fail: the disk is full
		for size := 4096; size > 0; {
			if _, err := f.Write(make([]byte, size)); err != nil {
				size /= 2
			}
		}
	}
}
