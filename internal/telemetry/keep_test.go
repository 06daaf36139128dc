package telemetry

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What a process has kept is read by the next one as soon as it has ended, and not only when its parent has asked how.
func TestAProcessThatHasEndedDoesNotRun(t *testing.T) {
	child := exec.Command(os.Args[0], "-test.run=^$")
	require.NoError(t, child.Start())
	assert.True(t, isCriproxy(os.Getpid()))
	for state := ""; state != "Z"; {
		var err error
		_, state, err = processOf(child.Process.Pid)
		require.NoError(t, err, "nobody has asked how it ended")
	}
	assert.False(t, isCriproxy(child.Process.Pid))
	require.NoError(t, child.Wait())
}
