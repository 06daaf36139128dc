// Package muxtest holds what tests of the multiplexer share: a small API that is not CRI, servers
// for it whose behaviour a test scripts, and messages as text.
package muxtest

import (
	"context"
	_ "embed"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bufbuild/protocompile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/director/dial"
	"github.com/criproxy/criproxy/internal/base/dump"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/testing/testkit"
	"github.com/criproxy/criproxy/internal/transport/grpcgo"
)

//go:embed library.proto
var libraryProto string

//go:embed library.yaml
var libraryYAML []byte

// OverGRPC says that backends are called with grpc-go's client instead of criproxy's own. make grpc-path builds tests so.
var OverGRPC = config.DefaultDataPath == config.GRPCPath

// Two of the differences between the data paths, of which docs/security.md and a test of internal/server have the list.
const (
	MemoryFirst = "memory for a message"
	HeaderFirst = "the header of a stream that the profile does not describe"
)

// SkipOverGRPC skips the rest of a test of what the data path of grpc-go does otherwise.
func SkipOverGRPC(t testing.TB, difference string) {
	t.Helper()
	if OverGRPC {
		t.Skipf("the data path of grpc-go differs in %s: docs/security.md", difference)
	}
}

// Package is the package of the API that tests use.
const Package = "library.v1"

// Library is the schema of that API.
var Library = compile(libraryProto)

func compile(source string) *codec.Schema {
	c := protocompile.Compiler{Resolver: &protocompile.SourceResolver{
		Accessor: protocompile.SourceAccessorFromMap(map[string]string{"library.proto": source}),
	}}
	files, err := c.Compile(context.Background(), "library.proto")
	if err != nil {
		panic(err)
	}
	return codec.NewSchema(files[0])
}

// LibraryProfile returns the profile of the API. The replacements, pairs of old and new text, change
// it.
func LibraryProfile(t testing.TB, replacements ...string) *director.Profile {
	t.Helper()
	p, err := director.ParseProfile([]byte(strings.NewReplacer(replacements...).Replace(string(libraryYAML))))
	require.NoError(t, err)
	return p
}

// Method returns the full method of an RPC of the API.
func Method(name string) string { return "/" + Package + ".Library/" + name }

// Message returns the descriptor of a message of the API.
func Message(name string) protoreflect.MessageDescriptor {
	md := Library.Methods()[0].Input.ParentFile().Messages().ByName(protoreflect.Name(name))
	if md == nil {
		panic("no such message: " + name)
	}
	return md
}

// Frame returns a message of the type called name, from its text format.
func Frame(t testing.TB, name, text string) *codec.Frame {
	t.Helper()
	m := dynamicpb.NewMessage(Message(name))
	require.NoError(t, prototext.Unmarshal([]byte(text), m))
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	require.NoError(t, err)
	return codec.NewFrame(b)
}

// Bytes is Frame, for a server's answers.
func Bytes(name, text string) *codec.Frame {
	m := dynamicpb.NewMessage(Message(name))
	if err := prototext.Unmarshal([]byte(text), m); err != nil {
		panic(err)
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic(err)
	}
	return codec.NewFrame(b)
}

// EqualProto asserts that got is the message of the type called name that want describes.
func EqualProto(t testing.TB, name, want string, got *codec.Frame) {
	t.Helper()
	assert.Equal(t, Text(name, Bytes(name, want)), Text(name, got))
}

// Text prints a message of the API.
func Text(name string, f *codec.Frame) string {
	return string(dump.Text{}.Append(nil, Message(name), f.Bytes()))
}

// A Handler answers the calls of a test's server.
type Handler func(method string, stream grpc.ServerStream) error

// Unary returns a handler that answers each unary call with the result of f.
func Unary(f func(ctx context.Context, method string, request *codec.Frame) (*codec.Frame, error)) Handler {
	return func(method string, stream grpc.ServerStream) error {
		request := &codec.Frame{}
		if err := stream.RecvMsg(request); err != nil {
			return err
		}
		reply, err := f(stream.Context(), method, request)
		if err != nil {
			return err
		}
		return stream.SendMsg(reply)
	}
}

// A Server is a gRPC server on a unix socket, with a Handler of the test.
type Server struct {
	Path string
	grpc *grpc.Server
}

// Serve starts a server at path, until the test ends.
func Serve(t testing.TB, path string, h Handler, opts ...grpc.ServerOption) *Server {
	t.Helper()
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	opts = append([]grpc.ServerOption{
		grpc.ForceServerCodecV2(codec.Raw),
		grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
			method, _ := grpc.MethodFromServerStream(stream)
			return h(method, stream)
		}),
		grpc.MaxRecvMsgSize(64 << 20),
		grpc.WaitForHandlers(true),
	}, opts...)
	s := &Server{Path: path, grpc: grpc.NewServer(opts...)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.grpc.Serve(l)
	}()
	t.Cleanup(func() {
		s.grpc.Stop()
		<-done
	})
	return s
}

// Stop ends the server at once, as a crash would.
func (s *Server) Stop() { s.grpc.Stop() }

// Connect returns a connection of frames to the socket at path.
func Connect(t testing.TB, path string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	opts = append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec.Raw), grpc.MaxCallRecvMsgSize(director.DefaultMaxMessage)),
	}, opts...)
	cc, err := grpc.NewClient("unix:"+path, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { cc.Close() }) // an error changes nothing
	return cc
}

// Dir returns a folder for sockets.
func Dir(t testing.TB) string {
	t.Helper()
	return testkit.SocketDir(t)
}

// Mux starts a server for each handler and a director in front of them, on real sockets, and returns
// a connection to the director. The first server is the primary; the others are called beta.io,
// gamma.io and delta.io.
func Mux(t testing.TB, cfg director.Config, handlers ...Handler) *grpc.ClientConn {
	t.Helper()
	dir := Dir(t)
	names := []string{"", "beta.io", "gamma.io", "delta.io"}
	if cfg.Schema == nil {
		cfg.Schema = Library
	}
	if OverGRPC && cfg.Pass == nil {
		cfg.Pass = grpcgo.Pass
	}
	for i, h := range handlers {
		s := Serve(t, filepath.Join(dir, fmt.Sprintf("%d.sock", i)), h)
		conn, err := dial.New(dial.Config{
			Name: names[i], Address: s.Path,
			Profile: cfg.Profile, Schema: cfg.Schema, Conversions: cfg.Conversions, MaxMessage: cfg.MaxMessage,
			GRPC: OverGRPC,
		})
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() }) // an error changes nothing
		if len(cfg.Backends) <= i {
			cfg.Backends = append(cfg.Backends, director.Backend{Name: names[i]})
		}
		cfg.Backends[i].Conn = conn
	}
	return Connect(t, ServeDirector(t, filepath.Join(dir, "mux.sock"), New(t, cfg)))
}

// Backend starts a server at path, until the test ends, and returns it as a backend.
func Backend(t testing.TB, path, name string, h Handler) director.Backend {
	t.Helper()
	conn, err := dial.New(dial.Config{GRPC: OverGRPC, Name: name, Address: Serve(t, path, h).Path})
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() }) // an error changes nothing
	return director.Backend{Name: name, Conn: conn}
}

// New returns the director of cfg, until the test ends.
func New(t testing.TB, cfg director.Config) *director.Director {
	t.Helper()
	d, err := director.New(cfg)
	require.NoError(t, err)
	t.Cleanup(d.Close)
	return d
}

// ServeDirector serves d on a socket at path, until the test ends, and returns path.
func ServeDirector(t testing.TB, path string, d *director.Director) string {
	t.Helper()
	h := d.Handler()
	return Serve(t, path, func(_ string, stream grpc.ServerStream) error { return h(nil, stream) }).Path
}
