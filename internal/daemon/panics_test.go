package daemon

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/internal/recovery"
	"github.com/criproxy/criproxy/internal/testkit"
)

// In calls of the multiplexer it is tested in package director.
func TestAPanicIsInternalCountedAndLoggedWithItsStack(t *testing.T) {
	recovery.Notify(logPanic)
	before := recovery.Count()
	err := recoverStream(nil, nil, &grpc.StreamServerInfo{FullMethod: "/x.Y/StreamZ"}, func(any, grpc.ServerStream) error { panic("first") })
	assert.Equal(t, codes.Internal, status.Code(err))
	_, err = recoverUnary(context.Background(), nil, &grpc.UnaryServerInfo{FullMethod: "/x.Y/UnaryZ"}, func(context.Context, any) (any, error) { panic("second") })
	assert.Equal(t, codes.Internal, status.Code(err))
	assert.Equal(t, before+2, recovery.Count())
	for _, what := range []string{"/x.Y/StreamZ", "/x.Y/UnaryZ"} {
		lines := testkit.LogLines(what, "a panic ended one call", "TestAPanicIsInternalCountedAndLoggedWithItsStack")
		assert.Len(t, lines, 1, what)
	}
}
