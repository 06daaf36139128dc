package dump_test

import (
	"context"
	"testing"

	"github.com/bufbuild/protocompile"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// compile returns the file called schema.proto, or what else is first.
func compile(t testing.TB, sources map[string]string, first string) protoreflect.FileDescriptor {
	t.Helper()
	c := protocompile.Compiler{Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{
		Accessor: protocompile.SourceAccessorFromMap(sources),
	})}
	files, err := c.Compile(context.Background(), first)
	require.NoError(t, err)
	return files[0]
}

func top(t testing.TB, schema string) protoreflect.MessageDescriptor {
	t.Helper()
	md := compile(t, map[string]string{"schema.proto": schema}, "schema.proto").Messages().ByName("Top")
	require.NotNil(t, md, "the message of a test is called Top")
	return md
}

func parse(t testing.TB, md protoreflect.MessageDescriptor, text string) []byte {
	t.Helper()
	m := dynamicpb.NewMessage(md)
	require.NoError(t, prototext.Unmarshal([]byte(text), m))
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	require.NoError(t, err)
	return b
}
