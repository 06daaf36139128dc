package director_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/director/dial"
	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// The race detector finds a failure of this test.
func TestSeveralBackendsWriteNothingIntoOneOption(t *testing.T) {
	profile := muxtest.LibraryProfile(t)
	cfg := director.Config{Profile: profile, Schema: muxtest.Library}
	for _, name := range []string{"", "beta.io"} {
		s := muxtest.Serve(t, filepath.Join(muxtest.Dir(t), "s"), func(_ string, stream grpc.ServerStream) error {
			if err := stream.RecvMsg(&codec.Frame{}); err != nil {
				return err
			}
			return stream.SendMsg(muxtest.Bytes("ListResponse", `books {id: "7"}`))
		})
		conn, err := dial.New(dial.Config{GRPC: muxtest.OverGRPC, Name: name, Address: s.Path})
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, conn.Close()) })
		k := backend.Open(name, backend.File{})
		require.NoError(t, k.Use(backend.Config{Name: name, Conn: conn, Schema: muxtest.Library, Package: muxtest.Package, Spec: profile.Known}))
		cfg.Backends = append(cfg.Backends, director.Backend{Name: name, Conn: k, Known: k})
	}
	d, err := director.New(cfg)
	require.NoError(t, err)
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
