package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// fill writes to a pipe until it is full.
func fill(t *testing.T, pipe *os.File) {
	t.Helper()
	// Reopened: other descriptors of the pipe still block.
	fd, err := syscall.Open(fmt.Sprintf("/proc/self/fd/%d", pipe.Fd()), syscall.O_WRONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	require.NoError(t, err)
	defer syscall.Close(fd)
	for _, size := range []int{4096, 1} {
		for err = nil; err == nil; {
			_, err = syscall.Write(fd, make([]byte, size))
		}
		require.ErrorIs(t, err, syscall.EAGAIN)
	}
}

// A log without a reader does not block the start, calls, the detection of outages, or the end.
func TestAnUnreadLogBlocksNothing(t *testing.T) {
	for _, test := range []struct {
		name   string
		signal os.Signal
		gone   bool // the reader has closed the pipe
	}{
		{"interrupt", os.Interrupt, false},
		{"terminated", syscall.SIGTERM, false},
		{"its reader has gone", syscall.SIGTERM, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := newProcess(t)
			r, stderr, err := os.Pipe()
			require.NoError(t, err)
			t.Cleanup(func() { r.Close() }) // it may be closed already
			if test.gone {
				require.NoError(t, r.Close())
			} else {
				fill(t, stderr)
			}
			cmd := exec.Command("criproxy", "-config", p.config, "-logtostderr")
			cmd.Stderr = stderr
			require.NoError(t, cmd.Start())
			require.NoError(t, stderr.Close())
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			t.Cleanup(func() { _ = cmd.Process.Kill() }) // it has ended, unless the test has failed
			client := runtimeapi.NewRuntimeServiceClient(p.connect(p.front))
			version := func() codes.Code {
				ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
				defer cancel()
				_, err := client.Version(ctx, &runtimeapi.VersionRequest{})
				return status.Code(err)
			}
			works := func() bool { return version() == codes.OK }
			testkit.Eventually(t, "it serves", works)
			for range 3 {
				p.runtimes[0].Kill()
				testkit.Eventually(t, "the end of the primary is noticed", func() bool { return version() == codes.Unavailable })
				p.runtimes[0].Start()
				testkit.Eventually(t, "its return is noticed", works)
			}
			require.NoError(t, cmd.Process.Signal(test.signal))
			select {
			case err := <-ended:
				assert.NoError(t, err)
			case <-time.After(testkit.Patience):
				require.Fail(t, "it does not end")
			}
		})
	}
}

// A line that is printed after the end of the log waits for the reader, but not for ever.
func TestAProcessWithUnreadStderrEnds(t *testing.T) {
	t.Parallel()
	r, stderr, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	fill(t, stderr)
	cmd := exec.Command("criproxy", "-connect", "not a path")
	cmd.Stderr = stderr
	require.NoError(t, cmd.Start())
	require.NoError(t, stderr.Close())
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // it has ended, unless the test has failed
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		var code *exec.ExitError
		assert.True(t, errors.As(err, &code) && code.ExitCode() == 1, "%v", err)
	case <-time.After(testkit.Patience):
		require.Fail(t, "it does not end")
	}
}
