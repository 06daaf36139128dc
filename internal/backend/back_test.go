package backend_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/inventory"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// browsed is a library with another list, which is no gate and comes at once.
type browsed struct{ *near }

func (b browsed) Call(ctx context.Context, call *codec.Call) error {
	if call.Method == muxtest.Method("Browse") {
		call.Reply = &codec.Frame{}
		return nil
	}
	return b.near.Call(ctx, call)
}

// The history said that a runtime was slow, because it was gone, if it came back while criproxy was restarted.
func TestABackendThatIsBackIsNotSlow(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		config := func(c *settings) {
			c.Next = browsed{n}
			c.Spec.Lists = append(c.Spec.Lists, inventory.List{List: "Browse", ID: "id", Every: time.Second})
		}
		old := n.watch(t, config)
		n.goes(t, old)
		n.library.with(func() { n.down = false })
		n.when(only("List", taking(500*time.Millisecond)))
		w := n.successor(t, old, config)
		assert.Equal(t, backend.Up, (<-w.states).Condition, "the first that it tells")
	}, "a")
}
