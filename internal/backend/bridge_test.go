package backend_test

import (
	"context"
	"io"
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

// bridged returns a connection to a library that lacks a method.
func bridged(t *testing.T, l *library, lacks string) grpc.ClientConnInterface {
	t.Helper()
	return bridgedOver(t, l, lacks, status.Errorf(codes.Unimplemented, "unknown method %s", lacks))
}

// bridgedOver is bridged for a library that says with lack that it lacks the method.
func bridgedOver(t *testing.T, l *library, lacks string, lack error) grpc.ClientConnInterface {
	t.Helper()
	l.fault = func(_ context.Context, method string) error {
		if method == lacks {
			return lack
		}
		return nil
	}
	conn, err := dial.New(dial.Config{Name: "beta.io", Address: l.path})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = conn.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	b, err := backend.Bridge(conn, muxtest.LibraryProfile(t).Known.Lists, muxtest.Library, muxtest.Package)
	require.NoError(t, err)
	return codec.Conn{Caller: b}
}

func TestABackendThatOnlyListsStreams(t *testing.T) {
	l := newLibrary(t, "1", "2")
	b := bridged(t, l, "Stream")
	for range 20 { // gRPC ends the context of a stream that has failed, now or a little later
		cs, err := b.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, muxtest.Method("Stream"))
		require.NoError(t, err)
		require.NoError(t, cs.SendMsg(&codec.Frame{}))
		require.NoError(t, cs.CloseSend())
		f := &codec.Frame{}
		require.NoError(t, cs.RecvMsg(f))
		assert.Contains(t, muxtest.Text("ListResponse", f), `id: "2"`)
		assert.ErrorIs(t, cs.RecvMsg(f), io.EOF)
	}
}

func TestABackendThatOnlyStreamsLists(t *testing.T) {
	l := newLibrary(t, "1", "2")
	b := bridged(t, l, "List")
	f := &codec.Frame{}
	require.NoError(t, b.Invoke(t.Context(), muxtest.Method("List"), &codec.Frame{}, f))
	assert.Contains(t, muxtest.Text("ListResponse", f), `id: "2"`)
}

// Some runtimes say with another code that they lack a method (issue 40).
func TestNotImplementedIsUnderstoodWithAnotherCode(t *testing.T) {
	for _, err := range []error{status.Error(codes.Unknown, "not implemented"), status.Error(codes.Internal, "StreamContainers: Not Implemented yet")} {
		l := newLibrary(t, "1", "2")
		b := bridgedOver(t, l, "Stream", err)
		cs, err := b.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, muxtest.Method("Stream"))
		require.NoError(t, err)
		require.NoError(t, cs.SendMsg(&codec.Frame{}))
		require.NoError(t, cs.CloseSend())
		f := &codec.Frame{}
		require.NoError(t, cs.RecvMsg(f))
		assert.Contains(t, muxtest.Text("ListResponse", f), `id: "2"`)
	}
	assert.False(t, backend.Lacks(status.Error(codes.Unknown, "server is not initialized yet")))
	assert.False(t, backend.Lacks(status.Error(codes.NotFound, "not implemented")), "that is about an item")
	assert.False(t, backend.Lacks(nil))
}
