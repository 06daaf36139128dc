package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/dump"
	"github.com/criproxy/criproxy/internal/testing/bounded"
)

func TestTheProgramIsShort(t *testing.T) {
	source, err := os.ReadFile("main.go")
	require.NoError(t, err)
	assert.LessOrEqual(t, bytes.Count(source, []byte("\n")), 60)
}

// serveNotes serves an API of which nothing was generated: each note says whose it is.
func serveNotes(t *testing.T, schema *codec.Schema, path, owner string) {
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	s := grpc.NewServer(grpc.ForceServerCodecV2(codec.Raw), grpc.UnknownServiceHandler(func(_ any, ss grpc.ServerStream) error {
		name, _ := grpc.MethodFromServerStream(ss)
		request := &codec.Frame{}
		if err := ss.RecvMsg(request); err != nil {
			return err
		}
		m := schema.Method(name)
		said := dump.Text{}.Append(nil, m.Input, request.Bytes())
		reply := `id: "7" text: ` + quote(owner+" was asked: "+string(said))
		if strings.HasSuffix(name, "/List") {
			reply = "notes {" + reply + "}"
		}
		return ss.SendMsg(message(m.Output, reply))
	}))
	go s.Serve(l)
	t.Cleanup(s.Stop)
}

func quote(s string) string { return "'" + s + "'" }

func message(md protoreflect.MessageDescriptor, text string) *codec.Frame {
	m := dynamicpb.NewMessage(md)
	if err := prototext.Unmarshal([]byte(text), m); err != nil {
		panic(err)
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic(err)
	}
	return codec.NewFrame(b)
}

func TestNotesOfTwoServersAreBehindOneSocket(t *testing.T) {
	dir, err := os.MkdirTemp("", "ex") // t.TempDir is too long for a socket
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	schema, err := codec.CompileProto(t.Context(), nil, "notes.proto")
	require.NoError(t, err)
	first, second, front := filepath.Join(dir, "1.sock"), filepath.Join(dir, "2.sock"), filepath.Join(dir, "f.sock")
	serveNotes(t, schema, first, "first")
	serveNotes(t, schema, second, "second")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, "notes.proto", front, []string{"=" + first, "work=" + second}) }()

	cc, err := grpc.NewClient("unix:"+front, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec.Raw)))
	require.NoError(t, err)
	for _, c := range []struct{ method, request, want string }{
		{"Get", `note_id: "7"`, `id: "7" text: "first was asked: note_id: \"7\""`},
		{"Get", `note_id: "work__7"`, `id: "work__7" text: "second was asked: note_id: \"7\""`},
		{"Write", `labels {key: "server" value: "work"}`, `id: "work__7" text: "second was asked: labels[\"server\"]: \"work\""`},
		{"List", ``, `notes {id: "7" text: "first was asked: "} notes {id: "work__7" text: "second was asked: "}`},
	} {
		m := schema.Method("/notes.v1.Notes/" + c.method)
		reply := &codec.Frame{}
		require.NoError(t, cc.Invoke(t.Context(), m.Name, message(m.Input, c.request), reply, grpc.WaitForReady(true)))
		assert.Equal(t, c.want, string(dump.Text{}.Append(nil, m.Output, reply.Bytes())))
	}
	require.NoError(t, cc.Close())
	stop()
	require.NoError(t, <-ended)
}

// Without arguments it panicked.
func TestWithoutArgumentsItSaysHowToUseIt(t *testing.T) {
	out, err := bounded.Command(t, "go", "run", ".").CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(out), "usage: example FILE.proto LISTEN NAME=SOCKET")
	assert.NotContains(t, string(out), "panic")
}
