package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/testkit"
)

// fill writes to a pipe until nothing more fits in.
func fill(t *testing.T, pipe *os.File) {
	t.Helper()
	// Opened anew: who else has the pipe still blocks.
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

// A log that nobody reads holds up neither a start nor calls, nor what is noticed of
// runtimes, nor the end.
func TestALogThatNobodyReadsHoldsUpNothing(t *testing.T) {
	for _, test := range []struct {
		name   string
		signal os.Signal
		gone   bool // who would read
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
				p.runtimes[0].kill()
				testkit.Eventually(t, "the end of the primary is noticed", func() bool { return version() == codes.Unavailable })
				p.runtimes[0].start()
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

// What is printed when the log has ended does wait, but not for ever.
func TestAProcessWhoseErrorNobodyReadsEnds(t *testing.T) {
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

// What has been lost is said where it would have been.
func TestWhatIsMissingInTheLogIsSaidInItsPlace(t *testing.T) {
	t.Parallel()
	r, w := io.Pipe()
	l, err := newUnreadLog(w)
	require.NoError(t, err)
	line := func(i int) string { return fmt.Sprintf("%d %s\n", i, strings.Repeat("x", i%9*20_000)) } // some longer than a pipe
	const lines = 400
	for i := range lines {
		_, err := io.WriteString(l.in, line(i))
		require.NoError(t, err)
	}
	read := bufio.NewReader(r)
	missing := 0
	for next := 0; next < lines; {
		got, err := read.ReadString('\n')
		require.NoError(t, err)
		var lost int
		if _, err := fmt.Sscanf(got, "criproxy: %d lines of the log are missing here: nobody read it\n", &lost); err == nil {
			next, missing = next+lost, missing+lost
			continue
		}
		require.True(t, got == line(next), "line %d is %.20q", next, got)
		next++
	}
	assert.Positive(t, missing)
	assert.Less(t, missing, lines)
	_, err = io.WriteString(l.in, "the last one\nwithout an end")
	require.NoError(t, err)
	ended := make(chan struct{})
	go func() { defer close(ended); l.close(); w.Close() }()
	rest, err := io.ReadAll(read)
	require.NoError(t, err)
	assert.Equal(t, "the last one\nwithout an end", string(rest))
	<-ended
}
