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
	"github.com/criproxy/criproxy/internal/inventory"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// measured is a library with an optional list, which fails while err is set.
type measured struct {
	*near
	err error
}

func (m *measured) Call(ctx context.Context, call *codec.Call) error {
	if call.Method != muxtest.Method("Browse") {
		return m.near.Call(ctx, call)
	}
	call.Reply = muxtest.Bytes("BrowseResponse", `books {id: "a"}`)
	return m.err
}

// One NotFound in ListContainerStats, as while a container is removed, made a healthy runtime slow (issue 40).
func TestAnOptionalListThatFailsMakesNothingSlow(t *testing.T) {
	for _, code := range []codes.Code{codes.NotFound, codes.Unknown, codes.Internal, codes.Unimplemented} {
		t.Run(code.String(), func(t *testing.T) {
			inNoTime(t, func(t *testing.T, n *near) {
				m := &measured{near: n}
				w := n.watch(t, func(c *settings) {
					c.Next = m
					c.Spec.Lists = append(c.Spec.Lists, inventory.List{List: "Browse", ID: "id", Optional: true})
				})
				browse := func() string {
					reply := &codec.Frame{}
					require.NoError(t, w.Invoke(t.Context(), muxtest.Method("Browse"), &codec.Frame{}, reply))
					return muxtest.Text("BrowseResponse", reply)
				}
				require.Equal(t, `books {id: "a"}`, browse())
				<-w.states // it is up
				for range 5 {
					m.err = status.Error(code, "no running task found")
					assert.Equal(t, `books {id: "a"}`, browse(), "the last answer")
					time.Sleep(time.Minute)
					m.err = nil
					browse()
				}
				assert.Empty(t, w.states, "its condition is what it was")
			}, "a")
		})
	}
}
