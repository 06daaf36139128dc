package codec_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/experimental"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/criproxy/criproxy/codec"
)

// listen serves s on a real unix socket until the test ends, and returns its path.
func listen(t testing.TB, s *grpc.Server) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "codec") // short: a socket's path has to be
	require.NoError(t, err)
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		assert.NoError(t, <-done)
		assert.NoError(t, os.RemoveAll(dir))
	})
	return path
}

func dial(t testing.TB, path string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	opts = append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, opts...)
	cc, err := grpc.NewClient("unix:"+path, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { cc.Close() }) //nolint:errcheck // the error would change nothing
	return cc
}

func raw() grpc.DialOption {
	return grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec.Raw), grpc.MaxCallRecvMsgSize(64<<20))
}

// echo answers each message of any method with itself, received into what new
// makes.
func echo(t testing.TB, new func() any, opts ...grpc.ServerOption) *grpc.Server {
	opts = append([]grpc.ServerOption{
		grpc.ForceServerCodecV2(codec.Raw), grpc.MaxRecvMsgSize(64 << 20), grpc.WaitForHandlers(true),
		grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
			for {
				m := new()
				if err := stream.RecvMsg(m); err == io.EOF {
					return nil
				} else if !assert.NoError(t, err) {
					return err
				}
				if err := stream.SendMsg(m); !assert.NoError(t, err) {
					return err
				}
				if f, ok := m.(*codec.Frame); ok {
					f.Free()
				}
			}
		}),
	}, opts...)
	return grpc.NewServer(opts...)
}

func newFrame() any { return &codec.Frame{} }
func newEmpty() any { return &emptypb.Empty{} }

func TestAPlainClientTalksToAServerOfFramesAndBack(t *testing.T) {
	for name, newMessage := range map[string]func() any{"frames": newFrame, "Empty": newEmpty} {
		t.Run(name, func(t *testing.T) {
			client := testpb.NewTestServiceClient(dial(t, listen(t, echo(t, newMessage))))
			// The reply is the request, read as another type: only what both have
			// at the same number survives in known fields.
			want := &testpb.SimpleRequest{ResponseSize: 314159, FillUsername: true, Payload: &testpb.Payload{Body: []byte("hello")}}
			reply, err := client.UnaryCall(t.Context(), want)
			require.NoError(t, err)
			b, err := proto.Marshal(reply)
			require.NoError(t, err)
			got := &testpb.SimpleRequest{}
			require.NoError(t, proto.Unmarshal(b, got), "unknown fields came along")
			assert.EqualValues(t, 314159, got.GetResponseSize())
			assert.True(t, got.GetFillUsername())
		})
	}
}

// A typed service, its messages encoded as usual by the codec of frames.
type typed struct {
	testpb.UnimplementedTestServiceServer
}

func (typed) UnaryCall(_ context.Context, r *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return &testpb.SimpleResponse{Username: "of " + string(r.GetPayload().GetBody()), Payload: r.GetPayload()}, nil
}

func TestTypedServicesAndFramesShareAConnection(t *testing.T) {
	s := echo(t, newFrame)
	testpb.RegisterTestServiceServer(s, typed{})
	cc := dial(t, listen(t, s), raw())
	request := &testpb.SimpleRequest{Payload: &testpb.Payload{Body: []byte("me")}}
	reply, err := testpb.NewTestServiceClient(cc).UnaryCall(t.Context(), request)
	require.NoError(t, err)
	assert.Equal(t, "of me", reply.GetUsername())

	f, err := codec.FrameOf(request)
	require.NoError(t, err)
	var got codec.Frame
	require.NoError(t, cc.Invoke(t.Context(), testpb.TestService_UnaryCall_FullMethodName, f, &got))
	fromFrame := &testpb.SimpleResponse{}
	require.NoError(t, codec.Decode(fromFrame, &got))
	assert.True(t, proto.Equal(reply, fromFrame))

	require.NoError(t, cc.Invoke(t.Context(), "/any.Service/Method", f, &got))
	assert.Equal(t, f.Bytes(), got.Bytes())
	got.Free()

	var empty emptypb.Empty
	require.NoError(t, cc.Invoke(t.Context(), "/any.Service/Method", f, &empty))
	assert.Equal(t, f.Bytes(), []byte(empty.ProtoReflect().GetUnknown()))
}

func TestALargeMessageStaysInPieces(t *testing.T) {
	const size = 5 << 20
	cc := dial(t, listen(t, echo(t, newFrame)), raw())
	stream, err := cc.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/any.Service/Method")
	require.NoError(t, err)
	want := bytes.Repeat([]byte("0123456789"), size/10)
	for range 2 {
		require.NoError(t, stream.SendMsg(codec.NewFrame(want)))
		var got codec.Frame
		require.NoError(t, stream.RecvMsg(&got))
		assert.Equal(t, len(want), got.Len())
		data, err := codec.Raw.Marshal(&got)
		require.NoError(t, err)
		assert.Greater(t, len(data), 1, "it was joined before that was needed")
		data.Free()
		assert.True(t, bytes.Equal(want, got.Bytes()))
		assert.True(t, bytes.Equal(want, got.Bytes()))
		got.Free()
	}
	require.NoError(t, stream.CloseSend())
	assert.Equal(t, io.EOF, stream.RecvMsg(&codec.Frame{}))
}

func TestAllBuffersOfAConnectionComeBack(t *testing.T) {
	clients, servers := newPool(t), newPool(t)
	s := echo(t, newFrame, experimental.BufferPool(servers))
	cc := dial(t, listen(t, s), raw(), experimental.WithBufferPool(clients))
	want := bytes.Repeat([]byte("x"), 100_000)
	for range 3 {
		var got codec.Frame
		require.NoError(t, cc.Invoke(t.Context(), "/any.Service/Method", codec.NewFrame(want), &got))
		assert.True(t, bytes.Equal(want, got.Bytes()))
		got.Free()
	}
	require.NoError(t, cc.Close())
	s.Stop()
	assert.Zero(t, servers.Out())
	assert.Zero(t, clients.Out())
}

func TestTheContentTypeIsThatOfPlainClients(t *testing.T) {
	assert.Empty(t, codec.Raw.Name())
}
