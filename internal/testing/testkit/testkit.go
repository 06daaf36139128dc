// Package testkit holds what the tests of several packages share.
package testkit

import (
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/internal/testing/untested"
)

// Patience bounds how long a test waits. It is long: the machine may be busy.
const Patience = time.Minute

// NeedRoot skips a test of what unless it runs as root.
func NeedRoot(t testing.TB, what string) {
	t.Helper()
	if os.Getuid() != 0 {
		untested.Skip(t, what+": this needs root")
	}
}

// Eventually waits until a condition holds. It checks the condition in the test's own goroutine.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(Patience); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			require.Fail(t, "it did not happen: "+what)
		}
	}
}

func AssertCode(t testing.TB, want codes.Code, err error) {
	t.Helper()
	assert.Equal(t, want.String(), status.Code(err).String(), "%v", err)
}

// SocketDir returns a folder for sockets. Its path is short: the path of a unix socket has at most 107 bytes, and t.TempDir may
// be longer.
func SocketDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "api")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) }) // an error changes nothing
	return dir
}

// FileRights returns owner and mode of a file, as "12:34 0640".
func FileRights(t testing.TB, path string) string {
	t.Helper()
	info, err := os.Lstat(path)
	require.NoError(t, err)
	st := info.Sys().(*syscall.Stat_t)
	return fmt.Sprintf("%d:%d %04o", st.Uid, st.Gid, info.Mode().Perm())
}
