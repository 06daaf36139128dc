package hookapi_test

import (
	"bytes"
	"context"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/bufbuild/protocompile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/pluginpb"

	"github.com/criproxy/criproxy/internal/testing/bounded"
)

var update = flag.Bool("update", false, "write the generated code anew")

// protoc-gen-go, of the protobuf in go.mod, generates this code from the .proto files.
func TestTheCodeIsThatOfTheProtoFiles(t *testing.T) {
	root := filepath.Join("..", "..")
	compiler := protocompile.Compiler{
		Resolver:       &protocompile.SourceResolver{ImportPaths: []string{root}},
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	names := []string{"hook/hookapi/koord.proto", "hook/hookapi/more.proto"}
	files, err := compiler.Compile(context.Background(), names...)
	require.NoError(t, err)
	request := &pluginpb.CodeGeneratorRequest{FileToGenerate: names, Parameter: proto.String("module=github.com/criproxy/criproxy")}
	for _, f := range files {
		request.ProtoFile = append(request.ProtoFile, protodesc.ToFileDescriptorProto(f))
	}
	reply := generate(t, request)
	require.Empty(t, reply.GetError())
	require.Len(t, reply.GetFile(), len(names))
	for _, f := range reply.GetFile() {
		path := filepath.Join(root, f.GetName())
		if *update {
			require.NoError(t, os.WriteFile(path, []byte(f.GetContent()), 0o644))
		}
		is, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.True(t, f.GetContent() == string(is), "%s is out of date: go test ./hook/hookapi -update", f.GetName())
	}
}

func generate(t *testing.T, request *pluginpb.CodeGeneratorRequest) *pluginpb.CodeGeneratorResponse {
	in, err := proto.Marshal(request)
	require.NoError(t, err)
	cmd := bounded.Command(t, "go", "run", "google.golang.org/protobuf/cmd/protoc-gen-go")
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	reply := &pluginpb.CodeGeneratorResponse{}
	require.NoError(t, proto.Unmarshal(out, reply))
	return reply
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
