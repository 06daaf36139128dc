package director_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/mwitkow/grpc-proxy/proxy"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/director/dial"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// Earlier versions passed streams through grpc-proxy, and other proxies use it: the director passes on all that it passes
// on. (The director also sends the header before the first message; grpc-proxy does not.)
func TestMessagesPassAsThroughGRPCProxy(t *testing.T) {
	dir := muxtest.Dir(t)
	backend := muxtest.Serve(t, filepath.Join(dir, "backend.sock"), anything)
	conn, err := dial.New(dial.Config{Address: backend.Path})
	require.NoError(t, err)
	defer conn.Close()
	d, err := director.New(director.Config{Schema: muxtest.Library, Backends: []director.Backend{{Conn: conn}}})
	require.NoError(t, err)
	front := muxtest.Connect(t, muxtest.ServeDirector(t, filepath.Join(dir, "mux.sock"), d), grpc.WithAuthority("localhost"))

	to := muxtest.Connect(t, backend.Path, grpc.WithAuthority("localhost"))
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
