// Package prototest compiles protobuf schemas and encodes messages from text, for tests.
package prototest

import (
	"testing"

	"github.com/bufbuild/protocompile"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

// Compile compiles sources, which map the name of a .proto file to its text, and returns the file
// called first. Sources may import each other and protobuf's own files.
func Compile(t testing.TB, sources map[string]string, first string) protoreflect.FileDescriptor {
	t.Helper()
	c := protocompile.Compiler{Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{
		Accessor: protocompile.SourceAccessorFromMap(sources),
	})}
	files, err := c.Compile(t.Context(), first)
	require.NoError(t, err)
	return files[0]
}

// Marshal encodes the message of type md that text describes in protobuf's text format. The result is
// deterministic.
func Marshal(t testing.TB, md protoreflect.MessageDescriptor, text string) []byte {
	t.Helper()
	m := dynamicpb.NewMessage(md)
	require.NoError(t, prototext.Unmarshal([]byte(text), m))
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	require.NoError(t, err)
	return b
}
