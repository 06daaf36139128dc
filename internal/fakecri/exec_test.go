package fakecri_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/testing/testkit"
)

func TestStreamingNeedsARunningContainer(t *testing.T) {
	c := start(t)
	pod, id := c.running("web")
	_, err := c.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod})
	require.NoError(t, err)
	_, err = c.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: id, Stdout: true})
	testkit.AssertCode(t, codes.Unknown, err)
	_, err = c.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"true"}})
	testkit.AssertCode(t, codes.Unknown, err)
	_, err = c.PortForward(t.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: pod})
	testkit.AssertCode(t, codes.Unknown, err)
}
