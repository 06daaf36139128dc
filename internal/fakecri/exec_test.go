package fakecri_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/fakecri"
)

func TestExecSyncRunsTheBuiltInCommands(t *testing.T) {
	c := start(t, fakecri.Config{})
	_, id := c.running("web")
	for command, want := range map[string]string{"true": "", "/bin/echo a b": "a b\n", "hostname": "web\n", "env": "PATH=/bin\nHOSTNAME=web\n"} {
		reply, err := c.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: strings.Fields(command)})
		require.NoError(t, err)
		assert.Equal(t, want, string(reply.GetStdout()), command)
	}
	for _, command := range []string{"", "sh"} {
		_, err := c.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: strings.Fields(command)})
		assertCode(t, codes.Unknown, err)
	}
}

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
