package backend_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/inventory"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
	"github.com/criproxy/criproxy/internal/testing/untested"
)

// printed is a library whose list is always the same one, and whose books have one status.
type printed struct {
	*near
	list, status *codec.Frame
}

func (p *printed) Call(ctx context.Context, call *codec.Call) error {
	down := p.absent(ctx)
	switch {
	case !down && call.Method == muxtest.Method("List"):
		call.Reply = p.list.Ref()
	case !down && call.Method == muxtest.Method("Get"):
		call.Reply = p.status.Ref()
	default:
		return p.near.Call(ctx, call)
	}
	return nil
}

// Nodes have a hundred pods. A list that is a hundred times as long passes, and is answered from the cache, streamed, handed
// over and read from the file, as a short one is.
func TestAListOfTenThousandItemsIsKept(t *testing.T) {
	untested.TakesLong(t)
	const items = 10_000
	var list []byte
	for i := range items {
		list = append(list, muxtest.Bytes("ListResponse", fmt.Sprintf(`books {id: "%05d" title: %q}`, i, strings.Repeat("x", 200))).Bytes()...)
	}
	inNoTime(t, func(t *testing.T, n *near) {
		at := backend.File{Path: filepath.Join(t.TempDir(), "beta.io.known")}
		of := func(b *backend.Backend) func(*settings) {
			return func(c *settings) {
				c.Backend, c.Next = b, &printed{n, codec.NewFrame(list), codec.NewFrame([]byte("\x12\x04Tale"))}
			}
		}
		has := func(b *backend.Backend, what string) {
			t.Helper()
			reply := &codec.Frame{}
			require.NoError(t, b.Invoke(t.Context(), muxtest.Method("List"), &codec.Frame{}, reply))
			assert.True(t, bytes.Equal(list, reply.Bytes()), "%s: the list", what)
			s, err := b.Open(t.Context(), &grpc.StreamDesc{ServerStreams: true}, muxtest.Method("Stream"), &codec.Frame{})
			require.NoError(t, err)
			var streamed []byte
			parts := 0
			for ; ; parts++ {
				f, err := s.Recv()
				if errors.Is(err, io.EOF) {
					break
				}
				require.NoError(t, err)
				streamed = append(streamed, f.Bytes()...)
			}
			assert.Equal(t, 3, parts, "%s: messages of 1 MiB", what)
			assert.True(t, bytes.Equal(list, streamed), "%s: the stream", what)
			assert.Equal(t, inventory.Match{N: 1, Whole: true}, b.Match("book", []byte("09999")), what)
			assert.Equal(t, inventory.Match{N: 100}, b.Match("book", []byte("099")), what)
			assert.Equal(t, items, b.Items()["book"], what)
			assert.Equal(t, items, b.Statuses(), what)
		}
		w := n.watch(t, of(backend.Open("beta.io", at)))
		has(w.Backend, "from the backend")
		n.goes(t, w)
		has(w.Backend, "from the cache")
		require.NoError(t, w.Save())
		has(n.config(t, of(backend.Open("beta.io", at))).begin(t), "from the file")
		handed, err := w.Encode()
		require.NoError(t, err)
		next, err := backend.Receive("beta.io", backend.File{}, handed)
		require.NoError(t, err)
		has(n.config(t, of(next)).begin(t), "handed over")
	})
}
