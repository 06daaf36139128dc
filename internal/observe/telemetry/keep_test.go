package telemetry

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/settings/config"
)

// The next process reads the file of a process that has ended, even if the parent has not waited for that one yet.
func TestAProcessThatHasEndedDoesNotRun(t *testing.T) {
	child := exec.Command(os.Args[0], "-test.run=^$")
	require.NoError(t, child.Start())
	assert.True(t, isCriproxy(os.Getpid()))
	for state := ""; state != "Z"; {
		var err error
		_, state, err = processOf(child.Process.Pid)
		require.NoError(t, err, "it has ended, and was not waited for yet")
	}
	assert.False(t, isCriproxy(child.Process.Pid))
	require.NoError(t, child.Wait())
}

// If a process ends while the next one starts, the one after that reads its file.
func TestAFileThatWasNotReadIsKept(t *testing.T) {
	dir := t.TempDir()
	r := &Recording{cfg: &config.Config{}, rec: capture.NewRecorder(capture.Config{}), Schema: codec.NewSchema()}
	read, late := filepath.Join(dir, "recorder-1.binlog"), filepath.Join(dir, "recorder-2.binlog")
	w, err := capture.Create(capture.FileConfig{Path: read, Header: r.Header, Schema: r.Schema})
	require.NoError(t, err)
	require.NoError(t, w.Close())
	require.NoError(t, r.RestoreFiles(dir))
	require.NoError(t, os.WriteFile(late, nil, 0o600))
	stop := make(chan struct{})
	close(stop)
	r.Keep(dir, stop, func() bool { return false })
	assert.NoFileExists(t, read, "it is in this one's")
	assert.FileExists(t, late)
	assert.FileExists(t, keptFile(dir, os.Getpid()))
}
