package server

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/testing/testkit"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestAPodShowsTheHandlerThatItWasRunWith(t *testing.T) {
	t.Parallel()
	for _, ids := range []string{config.PrefixIDs, config.NativeIDs} {
		for _, behind := range []string{"", "runc"} { // the name of handler two on beta.io
			n := newNode(t, func(c *config.Config) { c.IDs = ids }, machineConfig{}, machineConfig{backend: config.Backend{Name: "beta.io", Handlers: map[string]string{"two": behind}}})
			handlers := map[string]string{} // :: id → handler
			for _, handler := range []string{"", "runc", "two"} {
				id, _ := n.sandbox(testkit.PodConfig("pod"+handler), handler)
				handlers[id] = handler
			}
			for _, list := range []listing{listPods(nil), listPods(&runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{"app": "podtwo"}})} {
				unary, streamed := list.both(n)
				for _, item := range append(unary, streamed...) {
					assert.Equal(t, handlers[idOf(item)], item.(*runtimeapi.PodSandbox).GetRuntimeHandler())
				}
			}
			for id, handler := range handlers {
				got, err := n.PodSandboxStatus(n.ctx(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
				require.NoError(t, err)
				assert.Equal(t, handler, got.GetStatus().GetRuntimeHandler())
			}
		}
	}
}
