package criadapter_test

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/internal/profile"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// A relay is a proxy in front of runtimes that answer each call with reply. got is the latest request of one of them.
type relay struct {
	cc         *grpc.ClientConn
	got, reply []byte
}

// newRelay returns a relay to a runtime for each of versions, the only version of CRI that it has.
func newRelay(t *testing.T, o criadapter.Options, versions ...string) *relay {
	t.Helper()
	r := &relay{}
	cfg, err := criadapter.Config(o)
	require.NoError(t, err)
	var runtimes []muxtest.Handler
	for _, version := range versions {
		runtimes = append(runtimes, muxtest.Unary(func(_ context.Context, method string, request *codec.Frame) (*codec.Frame, error) {
			if strings.HasPrefix(method, "/runtime.") && profile.PackageOf(method) != version {
				return nil, status.Errorf(codes.Unimplemented, "unknown service %s", method)
			}
			r.got = bytes.Clone(request.Bytes())
			return codec.NewFrame(bytes.Clone(r.reply)), nil
		}))
	}
	r.cc = muxtest.Mux(t, cfg, runtimes...)
	return r
}

// call makes a call of any kind with one message each way.
func (r *relay) call(t *testing.T, name string, request []byte) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	cs, err := r.cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, name)
	require.NoError(t, err)
	if err := cs.SendMsg(codec.NewFrame(request)); err != nil {
		require.ErrorIs(t, err, io.EOF)
	}
	require.NoError(t, cs.CloseSend())
	reply := &codec.Frame{}
	require.NoError(t, cs.RecvMsg(reply), "%s %x", name, request)
	require.ErrorIs(t, cs.RecvMsg(&codec.Frame{}), io.EOF, "after the reply")
	return reply.Bytes()
}

// passes makes a call, and fills received with the request that the runtime gets.
func (r *relay) passes(t *testing.T, name string, request, received proto.Message) (reply []byte) {
	t.Helper()
	b, err := proto.Marshal(request)
	require.NoError(t, err)
	reply = r.call(t, name, b)
	require.NoError(t, proto.Unmarshal(r.got, received))
	return reply
}

// With a single backend the director changes no byte, of any method, even if the
// client or the runtime is of another version.
func TestASingleBackendGetsAndGivesTheSameBytes(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	relay := newRelay(t, criadapter.Options{}, "runtime.v1")

	methods := criadapter.Schema().Methods()
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
			relay.reply = muxtest.Random(r, output)
			if filepath.Base(name) == "Exec" || filepath.Base(name) == "Attach" || filepath.Base(name) == "PortForward" {
				relay.reply = []byte("\x0a\x1fhttp://127.0.0.1:35000/exec/abc")
			}
			answer := relay.call(t, name, request)
			require.Equal(t, string(request), string(relay.got), name)
			require.Equal(t, string(relay.reply), string(answer), name)
		}
	}
}
