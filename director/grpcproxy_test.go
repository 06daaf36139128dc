package director_test

import (
	"context"
	"io"
	"path/filepath"
	"testing"

	"github.com/mwitkow/grpc-proxy/proxy"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// Earlier versions passed streams through grpc-proxy, and other proxies use it: the director passes on all that it passes
// on. (The director also sends the header before the first message; grpc-proxy does not.)
func TestMessagesPassAsThroughGRPCProxy(t *testing.T) {
	dir := muxtest.Dir(t)
	b := muxtest.Backend(t, filepath.Join(dir, "backend.sock"), "", anything)
	d := muxtest.New(t, director.Config{Schema: muxtest.Library, Backends: []director.Backend{b}})
	front := muxtest.Connect(t, muxtest.ServeDirector(t, filepath.Join(dir, "mux.sock"), d), grpc.WithAuthority("localhost"))

	to := muxtest.Connect(t, filepath.Join(dir, "backend.sock"), grpc.WithAuthority("localhost"))
	passing := proxy.TransparentHandler(func(ctx context.Context, _ string) (context.Context, grpc.ClientConnInterface, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		return metadata.NewOutgoingContext(ctx, md.Copy()), to, nil
	})
	other := muxtest.Serve(t, filepath.Join(dir, "grpc-proxy.sock"), func(_ string, ss grpc.ServerStream) error { return passing(nil, ss) }, grpc.ForceServerCodecV2(codec.Raw))
	reference := muxtest.Connect(t, other.Path, grpc.WithAuthority("localhost"))

	for _, kind := range kinds {
		if !kind.desc.ClientStreams || !kind.desc.ServerStreams {
			continue
		}
		for _, how := range []string{"reply", "reply,fail", "reply,many", "reply,many,fail"} {
			t.Run(kind.method+"/"+how, func(t *testing.T) {
				requests := []string{"\x12" + string(rune(len(how))) + how, "\x12\x01a", ""}
				want := do(t, reference, kind.method, kind.desc, requests...)
				got := do(t, front, kind.method, kind.desc, requests...)
				assert.Equal(t, want, got)
				assert.NotEmpty(t, got.replies, "%+v", got)
			})
		}
	}
}

// The client of a unary list used to get one message for each backend: "cardinality violation". grpc-proxy's handler opens
// every call as a stream both ways.
func TestGRPCProxyPassesWhatIsUnaryByTheSchema(t *testing.T) {
	dir := muxtest.Dir(t)
	cfg := director.Config{Profile: muxtest.LibraryProfile(t), Schema: muxtest.Library}
	for _, name := range []string{"", "beta.io"} {
		b := muxtest.Backend(t, filepath.Join(dir, name+".sock"), name, muxtest.Unary(func(_ context.Context, method string, request *codec.Frame) (*codec.Frame, error) {
			switch method {
			case muxtest.Method("List"):
				return muxtest.Bytes("ListResponse", "books {id: 'of "+name+"'}"), nil
			case muxtest.Method("Get"):
				return nil, status.Error(codes.NotFound, muxtest.Text("GetRequest", request))
			}
			return muxtest.Frame(t, "VersionResponse", ""), nil
		}))
		cfg.Backends = append(cfg.Backends, b)
	}
	d := muxtest.New(t, cfg)
	passing := proxy.TransparentHandler(func(ctx context.Context, _ string) (context.Context, grpc.ClientConnInterface, error) {
		return ctx, d, nil
	})
	front := muxtest.Serve(t, filepath.Join(dir, "front.sock"), func(_ string, ss grpc.ServerStream) error { return passing(nil, ss) }, grpc.ForceServerCodecV2(codec.Raw))
	cc := muxtest.Connect(t, front.Path)

	list, err := call(t, cc, "List", "ListRequest", "")
	require.NoError(t, err)
	muxtest.EqualProto(t, "ListResponse", `books {id: "of "} books {id: "beta.io__of beta.io"}`, list)
	_, err = call(t, cc, "Get", "GetRequest", `book_id: "beta.io__7"`)
	assert.Equal(t, status.Error(codes.NotFound, `book_id: "7"`).Error(), err.Error())

	both := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
	cs, err := d.NewStream(t.Context(), both, muxtest.Method("List"))
	require.NoError(t, err)
	require.NoError(t, cs.CloseSend())
	assert.Equal(t, codes.Internal, status.Code(cs.RecvMsg(&codec.Frame{})), "without a request")
	cs = open(t, t.Context(), d, both, muxtest.Method("List"))
	assert.Equal(t, codes.Internal, status.Code(cs.SendMsg(&codec.Frame{})), "a second request")
	require.NoError(t, cs.RecvMsg(&codec.Frame{}))
	assert.Equal(t, io.EOF, cs.RecvMsg(&codec.Frame{}))
}
