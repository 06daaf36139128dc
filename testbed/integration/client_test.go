package integration

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/testbed/runtimes"
)

// The packages of CRI. The messages of v1alpha2 are those of v1 under another name; two of v1alpha1's are
// not.
const (
	v1       = "runtime.v1"
	v1alpha2 = "runtime.v1alpha2"
	v1alpha1 = "runtime"
)

// callTimeout bounds each call, so that a hanging runtime or proxy fails one test and does not block the run.
const callTimeout = time.Minute

// A client makes typed calls in one version of CRI.
type client struct {
	runtimeapi.RuntimeServiceClient
	runtimeapi.ImageServiceClient
}

func newClient(conn *grpc.ClientConn, version string) client {
	c := versioned{conn, version}
	return client{runtimeapi.NewRuntimeServiceClient(c), runtimeapi.NewImageServiceClient(c)}
}

// dial returns a client for a socket that is closed with the test.
func dial(t testing.TB, socket, version string) client {
	t.Helper()
	conn, err := runtimes.Dial(socket)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return newClient(conn, version)
}

// versioned is a connection that calls the methods of v1 by the names they have in a version.
type versioned struct {
	conn    *grpc.ClientConn
	version string
}

func (c versioned) name(method string) string {
	return strings.Replace(method, "/"+v1+".", "/"+c.version+".", 1)
}

func (c versioned) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, callTimeout)
		defer cancel()
	}
	return c.conn.Invoke(ctx, c.name(method), args, reply, opts...)
}

func (c versioned) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return c.conn.NewStream(ctx, desc, c.name(method), opts...)
}
