package server

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// The predecessors left gRPC's limit of 4 MiB in place, both ways.
func TestMessagesOfFiveMebibytesPassBothWays(t *testing.T) {
	for _, path := range []string{config.OwnPath, config.GRPCPath} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, func(c *config.Config) { c.DataPath = path })
			for i, b := range n.cfg.Backends {
				pod := testkit.PodConfig("large")
				pod.Annotations["large"] = strings.Repeat("x", 5<<20)
				if i > 0 {
					pod.Annotations["kubernetes.io/target-runtime"] = b.Name
				}
				made, err := n.RunPodSandbox(n.ctx(), &runtimeapi.RunPodSandboxRequest{Config: pod})
				require.NoError(t, err)
				reply, err := n.PodSandboxStatus(n.ctx(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: made.GetPodSandboxId()})
				require.NoError(t, err)
				assert.Len(t, reply.GetStatus().GetAnnotations()["large"], 5<<20)
			}
			list, err := n.ListPodSandbox(n.ctx(), &runtimeapi.ListPodSandboxRequest{})
			require.NoError(t, err)
			assert.Len(t, list.GetItems(), 2)
		})
	}
}
