package main

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/server"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// hangs makes a call hang on the second runtime until thaw.
func (p *process) hangs() (done <-chan error, thaw func()) {
	client := runtimeapi.NewRuntimeServiceClient(p.connect(p.front))
	p.runtimes[1].Fill(1)
	var id string
	testkit.Eventually(p, "the second runtime is there", func() bool {
		r, err := client.ListContainers(p.Context(), &runtimeapi.ListContainersRequest{})
		require.NoError(p, err)
		if len(r.GetContainers()) == 1 {
			id = r.GetContainers()[0].GetId()
		}
		return id != ""
	})
	var come atomic.Bool
	ice := make(chan struct{})
	p.runtimes[1].When(testkit.On(func(ctx context.Context, _ string, _ any) error {
		come.Store(true)
		select {
		case <-ice:
		case <-ctx.Done():
		}
		return nil
	}, "ExecSync"))
	result := make(chan error, 1)
	go func() {
		_, err := client.ExecSync(context.Background(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"true"}})
		result <- err
	}()
	testkit.Eventually(p, "the call hangs", come.Load)
	return result, func() { close(ice) }
}

// ended returns the error with which the process has ended.
func ended(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case <-done:
	case <-time.After(testkit.Patience):
		require.Fail(t, "it does not end")
	}
	return cmd.ProcessState.ExitCode()
}

// lines asserts that the log has a line that matches.
func (p *process) lines(pattern string) {
	p.Helper()
	data := readFile(p, p.log)
	assert.Regexp(p, regexp.MustCompile(pattern), string(data))
}

const hungCall = `calls=\["1 /runtime.v1.RuntimeService/ExecSync by criproxy.*uid \d+ \(process \d+\) at .*front.sock, for .*s"\] backends=\["beta.io has not answered 1"\] connections=\[.*front.sock"\]`

func TestAStopSaysWhichCallsItWaitsFor(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	cmd := p.launch()
	done, _ := p.hangs()
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	assert.Equal(t, 0, ended(t, cmd))
	testkit.AssertCode(t, codes.Unavailable, <-done)
	p.lines(`"Still stopping" after="\d+s" ` + hungCall)
	p.lines(`"Cutting off the calls that are still under way" ` + hungCall)
}

func TestAHandoverSaysWhichCallsItWaitsFor(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	cmd := p.launch()
	done, thaw := p.hangs()
	require.NoError(t, cmd.Process.Signal(syscall.SIGUSR2))
	testkit.Eventually(t, "it says what it waits for, again and again", func() bool { return p.logged(`"Still stopping"`) >= 2 })
	p.lines(`"Still stopping" after="\d+s" ` + hungCall)
	thaw()
	require.NoError(t, <-done)
	assert.Equal(t, 0, ended(t, cmd))
}

// Reading a pipe without a writer blocks for ever, like reading from a disk that hangs.
func TestAStopThatTakesTooLongSaysWhatHangs(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	cmd := p.launch()
	require.NoError(t, unix.Mkfifo(p.config+".fifo", 0o600))
	require.NoError(t, os.Rename(p.config+".fifo", p.config))
	testkit.Eventually(t, "it reads that", func() bool {
		fifo, err := os.OpenFile(p.config, os.O_WRONLY|unix.O_NONBLOCK, 0)
		if err == nil {
			t.Cleanup(func() { fifo.Close() }) // nothing has been written
		}
		return err == nil
	})
	began := time.Now()
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	assert.Equal(t, 1, ended(t, cmd))
	assert.GreaterOrEqual(t, time.Since(began), server.ExitBound)
	p.lines(`"This process ends now, and cuts off what has not ended" after="\d+s" parts=\["reading the configuration anew"\]`)
}
