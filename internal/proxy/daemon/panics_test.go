package daemon

import (
	"net"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/recovery"
	"github.com/criproxy/criproxy/internal/base/transport"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// Package director tests panics in its own calls.
func TestAPanicIsInternalCountedAndLoggedWithItsStack(t *testing.T) {
	recovery.Notify(logPanic)
	before := recovery.Count()
	l, err := net.Listen("unix", filepath.Join(testkit.SocketDir(t), "s.sock"))
	require.NoError(t, err)
	s := transport.NewServer(transport.ServerConfig{Handler: func(any, grpc.ServerStream) error { panic("first") }})
	go s.Serve(l, nil) // ends with the test
	t.Cleanup(s.Stop)
	err = testkit.Dialed(t, l.Addr().String()).Invoke(t.Context(), "/x.Y/Z", &codec.Frame{}, &codec.Frame{}, grpc.ForceCodecV2(codec.Raw))
	testkit.AssertCode(t, codes.Internal, err)
	assert.Equal(t, before+1, recovery.Count())
	assert.Len(t, testkit.LogLines("/x.Y/Z", "a panic ended one call", "panics_test.go"), 1)
}
