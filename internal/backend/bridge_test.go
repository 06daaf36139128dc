package backend_test

import (
	"context"
	"io"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director/dial"
	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// bridged returns a connection to a library with one book, which says with lack that it lacks a method.
func bridged(t *testing.T, lacks string, lack error) grpc.ClientConnInterface {
	t.Helper()
	server := muxtest.Serve(t, filepath.Join(muxtest.Dir(t), "l.sock"), muxtest.Unary(func(_ context.Context, method string, _ *codec.Frame) (*codec.Frame, error) {
		if method == muxtest.Method(lacks) {
			return nil, lack
		}
		return muxtest.Bytes("ListResponse", `books {id: "2"}`), nil
	}))
	conn, err := dial.New(dial.Config{Name: "beta.io", Address: server.Path})
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() }) // an error changes nothing
	b, err := backend.Bridge(conn, muxtest.LibraryProfile(t).Known.Lists, muxtest.Library, muxtest.Package)
	require.NoError(t, err)
	return codec.Conn{Caller: b}
}

// Some runtimes say with another code that they lack a method (issue 40).
func TestABackendThatOnlyListsStreams(t *testing.T) {
	for _, lack := range []error{
		status.Error(codes.Unimplemented, "unknown method Stream"), status.Error(codes.Unknown, "not implemented"),
		status.Error(codes.Internal, "StreamContainers: Not Implemented yet"),
	} {
		b := bridged(t, "Stream", lack)
		for range 20 { // gRPC ends the context of a stream that has failed, now or a little later
			cs, err := b.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, muxtest.Method("Stream"))
			require.NoError(t, err)
			require.NoError(t, cs.SendMsg(&codec.Frame{}))
			require.NoError(t, cs.CloseSend())
			f := &codec.Frame{}
			require.NoError(t, cs.RecvMsg(f))
			assert.Equal(t, `books {id: "2"}`, muxtest.Text("ListResponse", f))
			assert.ErrorIs(t, cs.RecvMsg(f), io.EOF)
		}
	}
	assert.False(t, backend.Lacks(status.Error(codes.Unknown, "server is not initialized yet")))
	assert.False(t, backend.Lacks(status.Error(codes.NotFound, "not implemented")), "that is about an item")
	assert.False(t, backend.Lacks(nil))
}

func TestABackendThatOnlyStreamsLists(t *testing.T) {
	b := bridged(t, "List", status.Error(codes.Unimplemented, "unknown method List"))
	f := &codec.Frame{}
	require.NoError(t, b.Invoke(t.Context(), muxtest.Method("List"), &codec.Frame{}, f))
	assert.Equal(t, `books {id: "2"}`, muxtest.Text("ListResponse", f))
}
