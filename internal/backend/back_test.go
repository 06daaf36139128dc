package backend_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/inventory"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// browsed is a library with another list, which is no gate and comes at once.
type browsed struct{ *near }

func (b browsed) Invoke(ctx context.Context, name string, args, reply any, opts ...grpc.CallOption) error {
	if name == muxtest.Method("Browse") {
		return codec.Decode(reply, &codec.Frame{})
	}
	return b.near.Invoke(ctx, name, args, reply, opts...)
}

// The history said that a runtime was slow, because it was gone, if it came back while criproxy was restarted.
func TestABackendThatIsBackIsNotSlow(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		config := func(c *settings) {
			c.Conn = browsed{n}
			c.Spec.Lists = append(c.Spec.Lists, inventory.List{List: "Browse", ID: "id", Every: time.Second})
		}
		old := n.watch(t, config)
		n.goes(t, old)
		data, err := old.Encode()
		require.NoError(t, err)
		n.library.with(func() { n.down = false })
		n.when(only("List", taking(500*time.Millisecond)))
		w := n.watch(t, func(c *settings) {
			config(c)
			c.Backend, err = backend.Receive("beta.io", backend.File{}, data)
			require.NoError(t, err)
		})
		assert.Equal(t, backend.Up, (<-w.states).Condition, "the first that it tells")
	}, "a")
}
