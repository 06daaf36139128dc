package server

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// updateConfig gives the node another CIDR for pods, as kubelet does.
func (n *node) updateConfig(cidr string) error {
	_, err := n.UpdateRuntimeConfig(n.ctx(), &runtimeapi.UpdateRuntimeConfigRequest{
		RuntimeConfig: &runtimeapi.RuntimeConfig{NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: cidr}},
	})
	return err
}

// has waits until runtime i has a CIDR for pods.
func (n *node) has(i int, cidr string) {
	n.Helper()
	testkit.Eventually(n, "the runtime has "+cidr, func() bool { return n.runtimes[i].PodCIDR() == cidr })
}

func TestConfigOfTheNodeWaitsForThePrimaryAlone(t *testing.T) {
	t.Parallel()
	const method = "UpdateRuntimeConfig"
	troubles := map[string]struct{ begin, end func(m *testkit.Machine) }{
		"frozen": {func(m *testkit.Machine) { m.Freeze() }, func(m *testkit.Machine) { m.Thaw() }},
		"hangs":  {func(m *testkit.Machine) { m.When(testkit.Hanging(method)) }, func(m *testkit.Machine) { m.When(nil); m.Kill(); m.Start() }},
		"ended":  {func(m *testkit.Machine) { m.Kill() }, func(m *testkit.Machine) { m.Start() }},
	}
	for _, code := range []codes.Code{codes.Canceled, codes.Unknown, codes.DeadlineExceeded, codes.ResourceExhausted, codes.Internal, codes.Unavailable} {
		troubles[code.String()] = struct{ begin, end func(m *testkit.Machine) }{
			func(m *testkit.Machine) { m.When(testkit.Failing(status.Error(code, "no"), method)) },
			func(m *testkit.Machine) { m.When(nil) },
		}
	}
	for name, trouble := range troubles {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, impatient).known()
			trouble.begin(n.runtimes[1])
			require.NoError(t, n.updateConfig("10.0.0.0/24"))
			assert.Equal(t, "10.0.0.0/24", n.runtimes[0].PodCIDR())
			require.NoError(t, n.updateConfig("10.0.1.0/24"))
			assert.Empty(t, n.runtimes[1].PodCIDR())
			trouble.end(n.runtimes[1])
			n.has(1, "10.0.1.0/24")
		})
	}
}

func TestConfigThatThePrimaryRefusesIsRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil).known()
	n.runtimes[0].When(testkit.Failing(status.Error(codes.InvalidArgument, "no such network"), "UpdateRuntimeConfig"))
	err := n.updateConfig("10.0.0.0/24")
	assert.Equal(t, status.Error(codes.InvalidArgument, "no such network").Error(), err.Error())
}

func TestARuntimeThatIsGoneGetsTheConfigAfterAReload(t *testing.T) {
	t.Parallel()
	n := newNode(t, impatient, machineConfig{}, machineConfig{backend: config.Backend{Name: "late.test"}}).known()
	n.runtimes[1].Kill()
	n.isDown(1)
	require.NoError(t, n.updateConfig("10.0.0.0/24"))
	n.change(func(c *config.Config) { c.ListBudget += time.Millisecond }) // makes new connections
	testkit.Eventually(t, "an attempt has failed", func() bool {
		return len(testkit.LogLines("repeats it until the runtime answers", `"backend"="late.test"`)) == 1
	})
	n.runtimes[1].Start()
	n.has(1, "10.0.0.0/24")
	testkit.Eventually(t, "it is said", func() bool {
		return len(testkit.LogLines("has taken a request later than the primary", `"backend"="late.test"`)) == 1
	})
}

func TestAProxyEndsThoughARuntimeLacksTheConfig(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil).known()
	asked := make(chan struct{}, 100)
	n.runtimes[1].When(testkit.On(func(ctx context.Context, _ string, _ any) error {
		asked <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}, "UpdateRuntimeConfig"))
	require.NoError(t, n.updateConfig("10.0.0.0/24"))
	<-asked
	n.stop()
}
