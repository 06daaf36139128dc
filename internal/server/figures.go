package server

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/director/dial"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/server/listen"
)

// containerdSuffix ends the path of containerd's own socket, which kubelet's cAdvisor uses by default. With another path, cAdvisor
// finds no containers of CRI, unless kubelet gets the path with --containerd.
const containerdSuffix = "run/containerd/containerd.sock"

// figureNotes says which statistics kubelet lacks about pods of other runtimes than the primary, and what to set; see
// docs/operations.md, "kubelet's figures about pods". lack are the runtimes that cannot list metrics. What kubelet asks, and of whom,
// depends on the path of the socket that it knows, and whether cAdvisor finds a pod depends on the ids.
func figureNotes(c *config.Config, lack []string) []string {
	var others []string
	for _, b := range c.Backends[1:] {
		others = append(others, b.Name)
	}
	if len(others) == 0 {
		return nil
	}
	const gate = "the feature gate PodAndContainerStatsFromCRI"
	prefixed := c.IDs != config.NativeIDs
	missing, cure := "their network in /stats/summary, their containers and their network in /metrics/cadvisor", gate
	switch {
	case strings.HasSuffix(c.Listen, listen.CRIOSuffix):
	case strings.HasSuffix(c.Listen, containerdSuffix) && prefixed:
		missing = "their network in /stats/summary"
	case strings.HasSuffix(c.Listen, containerdSuffix):
		missing = ""
	case prefixed:
		cure = fmt.Sprintf("--containerd=%s, which leaves the network in /stats/summary missing, or with %s", c.Listen, gate)
	default:
		cure = fmt.Sprintf("--containerd=%s or with %s", c.Listen, gate)
	}
	var all []string
	if missing != "" {
		all = append(all, fmt.Sprintf("kubelet lacks figures of the pods of %s: %s; start it with %s (docs/operations.md)", strings.Join(others, ", "), missing, cure))
	}
	if len(lack) > 0 {
		all = append(all, fmt.Sprintf("with %s kubelet has nothing of the pods of %s in /metrics/cadvisor, for want of ListPodSandboxMetrics there", gate, strings.Join(lack, ", ")))
	}
	return all
}

// listsMetrics reports whether a runtime has ListPodSandboxMetrics, which kubelet calls with PodAndContainerStatsFromCRI. An error
// other than Unimplemented leaves that open, and counts as yes.
func listsMetrics(ctx context.Context, conn *dial.Conn) bool {
	err := conn.Invoke(ctx, runtimeapi.RuntimeService_ListPodSandboxMetrics_FullMethodName, &runtimeapi.ListPodSandboxMetricsRequest{}, &runtimeapi.ListPodSandboxMetricsResponse{})
	return status.Code(err) != codes.Unimplemented
}
