package director_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// instant is a backend that answers at once.
type instant struct{ grpc.ClientConnInterface }

func (instant) Invoke(_ context.Context, _ string, _, reply any, _ ...grpc.CallOption) error {
	return codec.Decode(reply, muxtest.Bytes("Book", `id: "7f"`))
}

// The call was over, and its context with it, before the stream was open: the client got Canceled.
func TestAUnaryCallThatIsOverAtOnceHasItsReply(t *testing.T) {
	d := muxtest.New(t, director.Config{Profile: muxtest.LibraryProfile(t), Schema: muxtest.Library, Backends: []director.Backend{{Conn: instant{}}}})
	for range 20_000 {
		cs, err := d.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, muxtest.Method("Get"))
		require.NoError(t, err)
		request, sent := muxtest.Frame(t, "GetRequest", `book_id: "7f"`), make(chan error, 1)
		go func() { sent <- cs.SendMsg(request) }()
		require.NoError(t, cs.RecvMsg(&codec.Frame{}))
		require.NoError(t, <-sent)
	}
}
