package fakecri_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/fakecri"
)

func TestStreamingNeedsARunningContainer(t *testing.T) {
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
