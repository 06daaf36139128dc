package daemon

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A process that did not get the memories of the previous one used to serve without them: if there were no files, a
// runtime that was gone then had no pods.
func TestAProcessWithoutItsLegacyDoesNotServe(t *testing.T) {
	for name, answer := range map[string]string{"the other process ends": "", "it sends something else": "not a memory"} {
		t.Run(name, func(t *testing.T) {
			fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
			require.NoError(t, err)
			theirs, ours := os.NewFile(uintptr(fds[0]), "theirs"), os.NewFile(uintptr(fds[1]), "ours")
			_, err = theirs.WriteString(answer)
			require.NoError(t, err)
			require.NoError(t, syscall.Shutdown(fds[0], syscall.SHUT_WR))
			defer theirs.Close()
			legacy, err := ReceiveLegacy(ours)
			assert.ErrorContains(t, err, "taking over the memories of the previous process, which goes on")
			assert.Nil(t, legacy)
		})
	}
	legacy, err := ReceiveLegacy(nil)
	assert.NoError(t, err, "there is no process before this one")
	assert.Nil(t, legacy)
}
