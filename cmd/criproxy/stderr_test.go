package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// fill writes to a pipe until nothing more fits in.
func fill(t *testing.T, pipe int) {
	t.Helper()
	// Opened anew: who else has the pipe still blocks.
	fd, err := syscall.Open(fmt.Sprintf("/proc/self/fd/%d", pipe), syscall.O_WRONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	require.NoError(t, err)
	defer syscall.Close(fd)
	for _, size := range []int{4096, 1} {
		for err = nil; err == nil; {
			_, err = syscall.Write(fd, make([]byte, size))
		}
		require.ErrorIs(t, err, syscall.EAGAIN)
	}
}

func TestAProcessWhoseLogNobodyReadsEndsWhenItIsTold(t *testing.T) {
	for _, signal := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			p := newProcess(t)
			var ends [2]int
			require.NoError(t, syscall.Pipe2(ends[:], syscall.O_CLOEXEC))
			defer syscall.Close(ends[0])
			stderr := os.NewFile(uintptr(ends[1]), "stderr")
			cmd := exec.Command("criproxy", "-config", p.config, "-logtostderr")
			cmd.Stderr = stderr
			require.NoError(t, cmd.Start())
			eventually(t, "it serves", func() bool {
				conn, err := net.Dial("unix", besideListen(p.front))
				if err == nil {
					conn.Close()
				}
				return err == nil
			})
			client := runtimeapi.NewRuntimeServiceClient(p.connect(p.front))
			fill(t, ends[1])
			for range 10 {
				_, err := client.Version(t.Context(), &runtimeapi.VersionRequest{})
				require.NoError(t, err, "it serves whether or not somebody reads")
			}
			require.NoError(t, cmd.Process.Signal(signal))
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			eventually(t, "it ends", func() bool {
				select {
				case err := <-ended:
					var code *exec.ExitError
					assert.True(t, errors.As(err, &code) && code.ExitCode() == 1, "%v", err)
					return true
				default:
					return false
				}
			})
			require.NoError(t, stderr.Close())
		})
	}
}
