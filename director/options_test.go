package director_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// The race detector finds a failure of this test.
func TestSeveralBackendsWriteNothingIntoOneOption(t *testing.T) {
	profile := muxtest.LibraryProfile(t)
	cfg := director.Config{Profile: profile, Schema: muxtest.Library}
	for _, name := range []string{"", "beta.io"} {
		b := muxtest.Backend(t, filepath.Join(muxtest.Dir(t), "s"), name, func(_ string, stream grpc.ServerStream) error {
			if err := stream.RecvMsg(&codec.Frame{}); err != nil {
				return err
			}
			return stream.SendMsg(muxtest.Bytes("ListResponse", `books {id: "7"}`))
		})
		k := backend.Open(name, backend.File{})
		require.NoError(t, k.Use(backend.Config{Name: name, Next: codec.CallerOf(b.Conn), Schema: muxtest.Library, Package: muxtest.Package, Spec: profile.Known}))
		cfg.Backends = append(cfg.Backends, director.Backend{Name: name, Conn: k, Known: k})
	}
	d := muxtest.New(t, cfg)
	var trailer metadata.MD
	opts := append(make([]grpc.CallOption, 0, 4), grpc.Trailer(&trailer)) // with spare capacity, into which append would write
	for range 20 {
		cs, err := d.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, muxtest.Method("Stream"), opts...)
		require.NoError(t, err)
		require.NoError(t, cs.SendMsg(&codec.Frame{}))
		require.NoError(t, cs.CloseSend())
		for err == nil {
			err = cs.RecvMsg(&codec.Frame{})
		}
		require.ErrorContains(t, err, "EOF")
	}
}

// given is a backend that keeps the options of each call.
type given struct {
	grpc.ClientConnInterface
	options [][]grpc.CallOption
}

func (g *given) Invoke(_ context.Context, _ string, _, reply any, opts ...grpc.CallOption) error {
	g.options = append(g.options, opts)
	header, trailer := codec.MetadataOf(opts)
	*header, *trailer = metadata.Pairs("begins", "yes"), metadata.Pairs("ends", "yes")
	return codec.Decode(reply, &codec.Frame{})
}

// A program that uses the library gets header and trailer. All other options would be about a connection that a call with
// several backends does not have, and count for nothing, as the comment of Invoke says.
func TestOnlyTheOptionsForHeaderAndTrailerCount(t *testing.T) {
	backends := []*given{{}, {}}
	d, err := director.New(director.Config{Profile: muxtest.LibraryProfile(t), Schema: muxtest.Library,
		Backends: []director.Backend{{Conn: backends[0]}, {Name: "beta.io", Conn: backends[1]}}})
	require.NoError(t, err)
	t.Cleanup(d.Close)
	for method, asked := range map[string][]*given{"Get": backends[:1], "List": backends, "Tidy": backends} {
		t.Run(method, func(t *testing.T) {
			var header, trailer metadata.MD
			var from peer.Peer
			opts := []grpc.CallOption{grpc.Peer(&from), grpc.OnFinish(func(error) { assert.Fail(t, "OnFinish was called") }), grpc.MaxCallSendMsgSize(0),
				grpc.WaitForReady(true), grpc.UseCompressor("none"), grpc.CallContentSubtype("none"), grpc.Header(&header), grpc.Trailer(&trailer)}
			require.NoError(t, d.Invoke(t.Context(), muxtest.Method(method), &codec.Frame{}, &codec.Frame{}, opts...))
			assert.Len(t, header["begins"], len(asked))
			assert.Len(t, trailer["ends"], len(asked))
			assert.Nil(t, from.Addr)
			for _, b := range asked {
				require.Len(t, b.options, 1)
				for _, o := range b.options[0] {
					assert.Contains(t, []string{"grpc.HeaderCallOption", "grpc.TrailerCallOption"}, fmt.Sprintf("%T", o))
				}
				b.options = nil
			}
		})
	}
}
