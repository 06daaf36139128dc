package telemetry

import (
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/host"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// The next process reads the file of a process that has ended, even if the parent has not waited for that one yet.
func TestAProcessThatHasEndedDoesNotRun(t *testing.T) {
	child := exec.Command(os.Args[0], "-test.run=^$")
	require.NoError(t, child.Start())
	assert.True(t, isCriproxy(os.Getpid()))
	require.Eventually(t, func() bool { return host.State(child.Process.Pid) == "Z" }, time.Minute, time.Millisecond, "it ends, and is not waited for yet")
	assert.False(t, isCriproxy(child.Process.Pid))
	require.NoError(t, child.Wait())
}

// If a process ends while the next one starts, the one after that reads its file.
func TestAFileThatWasNotReadIsKept(t *testing.T) {
	dir := t.TempDir()
	r := &Recording{cfg: &config.Config{}, rec: capture.NewRecorder(capture.Config{Schema: codec.NewSchema()}), Schema: codec.NewSchema()}
	read, late := keptFile(dir, 1), keptFile(dir, 2)
	data, _ := r.Snapshot()
	require.NoError(t, os.WriteFile(read, data, 0o600))
	r.RestoreFiles(dir, func(f io.ReaderAt) io.ReaderAt { return f })
	require.NoError(t, os.WriteFile(late, nil, 0o600))
	stop := make(chan struct{})
	close(stop)
	r.Keep(dir, stop, func() bool { return false })
	assert.NoFileExists(t, read, "it is in this one's")
	assert.FileExists(t, late)
	assert.FileExists(t, keptFile(dir, os.Getpid()))
}

// What a process has from the one before it is in its file before any time passes: a crash must not lose an hour.
func TestAnInheritedRecordingIsKeptAtOnce(t *testing.T) {
	testkit.OnSimulatedClock(t, func(t *testing.T) {
		dir := t.TempDir()
		r := &Recording{cfg: &config.Config{}, rec: capture.NewRecorder(capture.Config{Schema: codec.NewSchema()}), Schema: codec.NewSchema()}
		stop := make(chan struct{})
		go r.Keep(dir, stop, func() bool { return false })
		began := time.Now()
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		assert.FileExists(t, keptFile(dir, os.Getpid()))
		assert.Less(t, time.Since(began), keepInterval)
		close(stop)
	})
}

// A process that ends, or hands over, does not wait for the compression of what it has recorded last.
func TestTheEndWaitsForNoCompression(t *testing.T) {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGUSR1) // the goroutine of package signal starts outside of the bubble
	testkit.OnSimulatedClock(t, func(t *testing.T) {
		rec := capture.NewRecorder(capture.Config{Schema: codec.NewSchema()})
		r := &Recording{cfg: &config.Config{}, rec: rec, Schema: codec.NewSchema()}
		stop, err := r.Start()
		require.NoError(t, err)
		_, leg := rec.Begin(t.Context(), capture.LegInfo{Method: "/a.B/C", Client: true})
		leg.End(nil, nil)
		synctest.Wait() // it pauses now, to let events gather
		began := time.Now()
		stop()
		assert.Zero(t, time.Since(began))
	})
}
