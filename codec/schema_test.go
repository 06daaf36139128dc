package codec_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/dump"
)

func names(s *codec.Schema) (names []string) {
	for _, m := range s.Methods() {
		names = append(names, m.Name)
	}
	return names
}

func TestASchemaOfLinkedInFilesKnowsTheirMethods(t *testing.T) {
	s := codec.NewSchema(testpb.File_grpc_testing_test_proto)
	for name, want := range map[string]struct{ unary, client, server bool }{
		"UnaryCall":           {unary: true},
		"StreamingOutputCall": {server: true},
		"StreamingInputCall":  {client: true},
		"FullDuplexCall":      {client: true, server: true},
	} {
		m := s.Method("/grpc.testing.TestService/" + name)
		require.NotNil(t, m, name)
		assert.Equal(t, "/grpc.testing.TestService/"+name, m.Name)
		assert.Equal(t, want.unary, m.Unary(), name)
		assert.Equal(t, want.client, m.ClientStreams, name)
		assert.Equal(t, want.server, m.ServerStreams, name)
	}
	m := s.Method(testpb.TestService_UnaryCall_FullMethodName)
	assert.Equal(t, (&testpb.SimpleRequest{}).ProtoReflect().Descriptor(), m.Input)
	assert.Equal(t, (&testpb.SimpleResponse{}).ProtoReflect().Descriptor(), m.Output)
	assert.Nil(t, s.Method("/grpc.testing.TestService/Typo"))
	assert.Nil(t, s.Method("UnaryCall"))
}

func TestTheNilSchemaKnowsNothing(t *testing.T) {
	var s *codec.Schema
	assert.Nil(t, s.Method("/grpc.testing.TestService/UnaryCall"))
	assert.Empty(t, s.Methods())
}

func TestLinkedInHasAllServicesAlwaysInTheSameOrder(t *testing.T) {
	s := codec.LinkedIn()
	require.NotNil(t, s.Method(testpb.TestService_UnaryCall_FullMethodName))
	require.NotNil(t, s.Method(testpb.BenchmarkService_UnaryCall_FullMethodName))
	for range 10 {
		assert.Equal(t, names(s), names(codec.LinkedIn()))
	}
}

func TestTheEarlierFileCounts(t *testing.T) {
	source := func(message string) protoreflect.FileDescriptor {
		return compile(t, map[string]string{"schema.proto": `syntax = "proto3"; package p;
			message ` + message + ` {} service S { rpc M(` + message + `) returns (` + message + `); }`}, "schema.proto")
	}
	s := codec.NewSchema(source("Old"), source("New"))
	assert.Equal(t, []string{"/p.S/M"}, names(s))
	assert.EqualValues(t, "p.Old", s.Method("/p.S/M").Input.FullName())
}

var sources = map[string]string{
	"b.proto": `syntax = "proto3"; package p; import "lib.proto";
		message B { string id = 1; lib.Part part = 2; lib.Colour colour = 3; }
		service B2 { rpc Later(B) returns (stream lib.Part); rpc Earlier(B) returns (B); }`,
	"a.proto": `syntax = "proto3"; package p; message A { string id = 1; }
		service A2 { rpc Only(A) returns (A); }`,
	"lib.proto": `syntax = "proto3"; package lib; message Part { string name = 1; } enum Colour { RED = 0; BLUE = 1; }`,
}

func set(t testing.TB, files ...string) []byte {
	t.Helper()
	fds := &descriptorpb.FileDescriptorSet{}
	for _, file := range files {
		fds.File = append(fds.File, protodesc.ToFileDescriptorProto(compile(t, sources, file)))
	}
	b, err := proto.Marshal(fds)
	require.NoError(t, err)
	return b
}

func TestASchemaOfADescriptorSetIsInItsOrder(t *testing.T) {
	s, err := codec.ParseSchema(set(t, "lib.proto", "b.proto", "a.proto"))
	require.NoError(t, err)
	assert.Equal(t, []string{"/p.B2/Later", "/p.B2/Earlier", "/p.A2/Only"}, names(s))
	assert.True(t, s.Method("/p.B2/Later").ServerStreams)
	assert.EqualValues(t, "lib.Part", s.Method("/p.B2/Later").Output.FullName())
}

func TestSetWithoutAnImportIsPrintedByNumber(t *testing.T) {
	whole, err := codec.ParseSchema(set(t, "lib.proto", "b.proto"))
	require.NoError(t, err)
	partial, err := codec.ParseSchema(set(t, "b.proto"))
	require.NoError(t, err)
	assert.Equal(t, names(whole), names(partial))

	b := parse(t, whole.Method("/p.B2/Later").Input, `id: "7f" part {name: "wheel"} colour: BLUE`)
	text := func(s *codec.Schema) string {
		return string(dump.Text{}.Append(nil, s.Method("/p.B2/Later").Input, b))
	}
	assert.Equal(t, `id: "7f" part {name: "wheel"} colour: BLUE`, text(whole))
	assert.Equal(t, `id: "7f" part {1: "wheel"} colour: 1`, text(partial))

	part := parse(t, whole.Method("/p.B2/Later").Output, `name: "wheel"`)
	assert.Equal(t, `1: "wheel"`, string(dump.Text{}.Append(nil, partial.Method("/p.B2/Later").Output, part)))
}

func TestInvalidDescriptorSetsAreRefused(t *testing.T) {
	_, err := codec.ParseSchema([]byte("\xff"))
	assert.ErrorContains(t, err, "reading a FileDescriptorSet: ")
	_, err = codec.ParseSchema(slices.Concat(set(t, "a.proto"), set(t, "a.proto")))
	assert.ErrorContains(t, err, "linking a FileDescriptorSet: ")
}
