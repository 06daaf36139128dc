package dump_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/internal/testing/prototest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	compile = prototest.Compile
	parse   = prototest.Marshal
)

func top(t testing.TB, schema string) protoreflect.MessageDescriptor {
	t.Helper()
	md := compile(t, map[string]string{"schema.proto": schema}, "schema.proto").Messages().ByName("Top")
	require.NotNil(t, md, "the message of a test is called Top")
	return md
}
