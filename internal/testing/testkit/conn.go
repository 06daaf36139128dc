package testkit

import (
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/criproxy/criproxy/codec"
)

// Connects reports whether a process listens on a socket. The socket's file is not enough evidence:
// it exists before the process listens.
func Connects(socket string) bool {
	conn, err := net.Dial("unix", socket)
	return err == nil && conn.Close() == nil
}

// Dialed returns a connection for frames and for protobuf messages.
func Dialed(t *testing.T, socket string) *grpc.ClientConn {
	t.Helper()
	cc, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec.Raw)))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, cc.Close()) })
	return cc
}
