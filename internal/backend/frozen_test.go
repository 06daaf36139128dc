package backend_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/inventory"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// bare removes what the profile remembers: the backend has no gate.
func bare(alive string) func(*settings) {
	return func(c *settings) { c.Spec, c.Alive = inventory.Spec{}, alive }
}

// A frozen backend of an API without known came up every ten seconds, because it accepted connections (issue 43).
func TestAFrozenBackendIsUpWhenItAnswers(t *testing.T) {
	for name, alive := range map[string]string{"with a probe": muxtest.Method("Get"), "with no method to ask": ""} {
		t.Run(name, func(t *testing.T) {
			inNoTime(t, func(t *testing.T, n *near) {
				w := n.watch(t, bare(alive))
				n.when(hang)
				for range 20 {
					ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
					assert.Error(t, w.Invoke(ctx, muxtest.Method("Put"), &codec.Frame{}, &codec.Frame{}))
					cancel()
					time.Sleep(15 * time.Second)
				}
				require.Equal(t, backend.Gone, w.State().Condition)
				assert.Len(t, w.states, 1, "it is gone once")
				n.when(func(context.Context, string) error { return status.Error(codes.Unimplemented, "unknown method") })
				time.Sleep(3 * time.Minute) // the latest probe may wait for the hang for that long
				assert.Equal(t, backend.Up, w.State().Condition, "any answer counts")
			}, "a")
		})
	}
}

// A call that takes long by its nature, as a watch does, says nothing about a backend that answers others.
func TestALongCallOfAnAPIWithoutKnownEndsNothing(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, bare(""))
		n.when(only("Bind", taking(time.Minute)))
		assert.NoError(t, w.bind(t.Context(), "a"))
		assert.Empty(t, w.states, "it stays up")
	}, "a")
}
