package criadapter_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/director/dial"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// mirror answers each call with what reply returns, and keeps the request.
func mirror(got *[]byte, reply *[]byte) muxtest.Handler {
	return func(_ string, stream grpc.ServerStream) error {
		request := &codec.Frame{}
		if err := stream.RecvMsg(request); err != nil {
			return err
		}
		*got = append([]byte{}, request.Bytes()...)
		return stream.SendMsg(codec.NewFrame(append([]byte{}, *reply...)))
	}
}

// With a single backend the director changes no byte, of any method, even if the
// client or the runtime is of another version.
func TestASingleBackendGetsAndGivesTheSameBytes(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	var got, reply []byte
	dir := muxtest.Dir(t)
	cfg, err := criadapter.Config(criadapter.Options{})
	require.NoError(t, err)
	cc := front(t, dir, cfg, mirror(&got, &reply))

	methods := cfg.Schema.Methods()
	require.Len(t, methods, 43)
	names := []string{}
	for _, m := range methods {
		names = append(names, m.Name)
	}
	names = append(names, "/runtime.v1.RuntimeService/FromTheFuture", "/containerd.services.images.v1.Images/List")
	for i, name := range names {
		for range 50 {
			input, output := muxtest.Message("Book"), muxtest.Message("Book") // for a method that the profile lacks
			if i < len(methods) {
				input, output = methods[i].Input, methods[i].Output
			}
			request := muxtest.Random(r, input)
			reply = muxtest.Random(r, output)
			if filepath.Base(name) == "Exec" || filepath.Base(name) == "Attach" || filepath.Base(name) == "PortForward" {
				reply = []byte("\x0a\x1fhttp://127.0.0.1:35000/exec/abc")
			}
			answer, err := invoke(t, cc, name, request)
			require.NoError(t, err, "%s %x", name, request)
			require.Equal(t, string(request), string(got), name)
			require.Equal(t, string(reply), string(answer), name)
		}
	}
}

// invoke makes a call of any kind with one message each way.
func invoke(t testing.TB, cc *grpc.ClientConn, name string, request []byte) ([]byte, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	cs, err := cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, name)
	require.NoError(t, err)
	if err := cs.SendMsg(codec.NewFrame(request)); err != nil {
		require.ErrorIs(t, err, io.EOF)
	}
	require.NoError(t, cs.CloseSend())
	reply := &codec.Frame{}
	if err := cs.RecvMsg(reply); err != nil {
		return nil, err
	}
	if err := cs.RecvMsg(&codec.Frame{}); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("after the reply: %w", err)
	}
	return reply.Bytes(), nil
}

// front starts the backends and a director in front of them; the second backend
// is called two.test.
func front(t testing.TB, dir string, cfg director.Config, handlers ...muxtest.Handler) *grpc.ClientConn {
	t.Helper()
	for i, h := range handlers {
		name := []string{"", "two.test"}[i]
		path := filepath.Join(dir, fmt.Sprintf("%d.sock", i))
		muxtest.Serve(t, path, h)
		conn, err := dial.New(dial.Config{GRPC: muxtest.OverGRPC, Name: name, Address: path, Profile: cfg.Profile, Schema: cfg.Schema, Conversions: cfg.Conversions})
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, conn.Close()) })
		cfg.Backends = append(cfg.Backends, director.Backend{Name: name, Conn: conn})
	}
	d, err := director.New(cfg)
	require.NoError(t, err)
	return muxtest.Connect(t, muxtest.ServeDirector(t, filepath.Join(dir, "front.sock"), d))
}
