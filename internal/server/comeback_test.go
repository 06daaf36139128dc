package server

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/fakecri"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// A takeover restarts containerd and then criproxy, which inherits that containerd was gone. containerd 1.6 fails
// ListPodSandboxStats while it has a sandbox that has ended, as after a boot. It used to stay slow for ever, because of a
// list that no client had asked for.
func TestARuntimeThatIsBackBeforeARestartIsUp(t *testing.T) {
	t.Parallel()
	for name, pods := range map[string]int{"without pods": 0, "with pods": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			old := fakecri.Config{NoMetrics: true, NoStreams: true, Events: fakecri.EventsUnimplemented}
			n := newNode(t, hasty, machineConfig{Config: old}, machineConfig{backend: config.Backend{Name: "beta.io"}})
			n.runtimes[0].When(testkit.Failing(status.Error(codes.Unknown, "failed to decode sandbox container metrics"), "ListPodSandboxStats"))
			for range pods {
				n.run(0, "web", 2)
			}
			n.known()
			n.runtimes[0].Kill()
			n.isDown(0)
			n.stop()
			n.runtimes[0].Start()
			n.start()
			n.isUp(0)
			for range 3 { // one odd answer would be no condition
				_, _ = n.ListPodSandboxStats(t.Context(), &runtimeapi.ListPodSandboxStatsRequest{})
			}
			n.isUp(0)
		})
	}
}
