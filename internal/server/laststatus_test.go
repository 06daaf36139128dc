package server

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/fakecri"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

func TestAnImageIsNotShownAsItWasBeforeACall(t *testing.T) {
	t.Parallel()
	for which := range 2 {
		n := newNode(t, hasty)
		pull := func(name string) {
			_, err := n.PullImage(n.ctx(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: n.image(which, name)}})
			require.NoError(t, err)
		}
		is := func(name string) error {
			_, err := n.ImageStatus(n.ctx(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: n.image(which, name)}})
			return err
		}
		pull("stays")
		pull("goes")
		n.known()
		n.runtimes[which].When(testkit.Hanging("ListImages", "StreamImages"))
		pull("comes")
		_, err := n.RemoveImage(n.ctx(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: n.image(which, "goes")}})
		require.NoError(t, err)
		n.runtimes[which].Kill()
		n.isDown(which)
		assert.Equal(t, codes.Unavailable, status.Code(is("comes")))
		assert.Equal(t, codes.Unavailable, status.Code(is("goes")))
		assert.NoError(t, is("stays"))
	}
}

func TestARuntimeThatLacksAMethodIsUpAfterAHang(t *testing.T) {
	t.Parallel()
	n := newNode(t, hasty, machineConfig{}, machineConfig{Config: fakecri.Config{NoMetrics: true}, backend: config.Backend{Name: "beta.io"}})
	n.run(1, "db", 1)
	n.known()
	n.runtimes[1].When(testkit.Hanging("ListPodSandboxMetrics"))
	_, _ = n.ListPodSandboxMetrics(n.ctx(), &runtimeapi.ListPodSandboxMetricsRequest{}) // late, or from the cache
	testkit.Eventually(t, "it is slow, or even gone on a busy machine", func() bool { return n.state(1).Condition != backend.Up })
	n.runtimes[1].When(nil)
	testkit.Eventually(t, "it is up", func() bool { return n.state(1).Condition == backend.Up })
}
