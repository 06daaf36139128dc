package fakecri_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/fakecri"
)

func TestExecSyncHonoursItsTimeout(t *testing.T) {
	c := start(t, fakecri.Config{})
	_, id := c.running("web")
	_, err := c.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"sleep", "1h"}, Timeout: 1})
	assertCode(t, codes.DeadlineExceeded, err)
}

func TestExecSyncEndsWithItsCallerAndItsContainer(t *testing.T) {
	c := start(t, fakecri.Config{})
	_, id := c.running("web")
	begun := make(chan struct{}, 1)
	c.rt.Fault(func(_ context.Context, method string, _ any) error {
		if strings.HasSuffix(method, "/ExecSync") {
			begun <- struct{}{}
		}
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-begun; cancel() }()
	_, err := c.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"sleep", "1h"}})
	assertCode(t, codes.Canceled, err)

	exited := make(chan error, 1)
	go func() { <-begun; exited <- c.rt.Exit(id, 0) }()
	got, err := c.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"sleep", "1h"}})
	require.NoError(t, <-exited)
	if err == nil {
		assert.EqualValues(t, 137, got.GetExitCode())
	} else {
		assertCode(t, codes.Unknown, err) // it had exited before the command began
	}
}

func TestStreamingNeedsWhatRunsAndAStream(t *testing.T) {
	c := start(t, fakecri.Config{})
	pod, id := c.running("web")
	_, err := c.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: id})
	assertCode(t, codes.InvalidArgument, err)
	_, err = c.Attach(t.Context(), &runtimeapi.AttachRequest{ContainerId: id, Stdout: true, Stderr: true, Tty: true})
	assertCode(t, codes.InvalidArgument, err)
	_, err = c.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod})
	require.NoError(t, err)
	_, err = c.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: id, Stdout: true})
	assertCode(t, codes.Unknown, err)
	_, err = c.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"true"}})
	assertCode(t, codes.Unknown, err)
	_, err = c.PortForward(t.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: pod})
	assertCode(t, codes.Unknown, err)
}
