package backend_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/backend"
)

// kubelet sends StopPodSandbox right after StopContainer, whatever that returned. If only the second
// call reached the runtime, it would kill the container without the grace that the first would give.
func TestChangesInARowFailTogether(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, nil)
		refused := 0
		for after := time.Duration(0); after < 4*time.Second; after += 20 * time.Millisecond {
			n.goes(t, w)
			time.Sleep(10 * time.Second)
			n.library.with(func() { n.down = false })
			time.Sleep(after)
			first := w.bind(t.Context(), "a")
			time.Sleep(100 * time.Millisecond)
			second := w.bind(t.Context(), "a")
			if first != nil {
				refused++
				require.Error(t, second, "%s after the backend is there again", after)
			}
			time.Sleep(10 * time.Second)
			require.NoError(t, w.bind(t.Context(), "a"))
		}
		assert.Positive(t, refused)
	}, "a")
}

func TestRefusalsDoNotKeepABackendGone(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, nil)
		n.goes(t, w)
		time.Sleep(time.Hour)
		n.library.with(func() { n.down = false })
		for range 50 {
			_ = w.bind(t.Context(), "a") // refused at first
			time.Sleep(100 * time.Millisecond)
		}
		assert.Equal(t, backend.Up, w.State().Condition)
	}, "a")
}
