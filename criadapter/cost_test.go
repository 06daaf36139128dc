//go:build !race

package criadapter_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/director"
)

// The limits are numbers of allocations, because these are the same on every machine, unlike
// times. The race detector allocates as well, so make race runs this test without it. A commit
// that makes a number smaller changes it here; a commit that makes it larger says why.
const (
	allocsOfStatus     = 17 // of a call by id, from a server stream to a connection
	allocsOfList       = 29 // of a list merged from two runtimes, however long
	allocsOfOneRuntime = 7  // of a call if there is only one runtime
)

// calling is the stream of a client that has sent a request.
type calling struct {
	grpc.ServerStream
	ctx     context.Context
	request *codec.Frame
	got     int // bytes of the reply
}

// named is the transport stream from which a handler gets the method.
type named struct {
	grpc.ServerTransportStream
	method string
}

func (n named) Method() string { return n.method }

func newCall(method string, request proto.Message) *calling {
	f, err := codec.FrameOf(request)
	if err != nil {
		panic(err)
	}
	c := &calling{request: f}
	ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs(":authority", "localhost", "content-type", "application/grpc", "user-agent", "grpc-go/1"))
	c.ctx = grpc.NewContextWithServerTransportStream(ctx, named{method: method})
	return c
}

func (c *calling) Context() context.Context     { return c.ctx }
func (c *calling) SetHeader(metadata.MD) error  { return nil }
func (c *calling) SendHeader(metadata.MD) error { return nil }
func (c *calling) SetTrailer(metadata.MD)       {}
func (c *calling) RecvMsg(m any) error          { return codec.Decode(m, c.request.Ref()) }
func (c *calling) SendMsg(m any) error {
	f, err := codec.FrameOf(m)
	if err == nil {
		c.got = f.Len()
	}
	return err
}

// allocations counts the allocations of a call that a number of runtimes answer with reply.
func allocations(t *testing.T, runtimes int, call *calling, reply proto.Message) int {
	t.Helper()
	cfg, err := criadapter.Config(criadapter.Options{})
	require.NoError(t, err)
	f, err := codec.FrameOf(reply)
	require.NoError(t, err)
	for _, name := range []string{"", "two.test"}[:runtimes] {
		cfg.Backends = append(cfg.Backends, director.Backend{Name: name, Conn: answering{reply: f}})
	}
	d, err := director.New(cfg)
	require.NoError(t, err)
	handle := d.Handler()
	n := testing.AllocsPerRun(300, func() {
		if err := handle(nil, call); err != nil {
			t.Fatal(err)
		}
	})
	require.Positive(t, call.got, "it was answered")
	return int(n)
}

func TestACallAllocatesNoMoreThanItDid(t *testing.T) {
	status := &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{Id: "1234", Image: &runtimeapi.ImageSpec{Image: "busybox"}}}
	byID := func(id string) *calling {
		return newCall(runtimeapi.RuntimeService_ContainerStatus_FullMethodName, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	}
	list := func() *calling {
		return newCall(runtimeapi.RuntimeService_ListContainers_FullMethodName, &runtimeapi.ListContainersRequest{})
	}
	assert.Equal(t, allocsOfOneRuntime, allocations(t, 1, byID("1234"), status), "one runtime")
	assert.Equal(t, allocsOfStatus, allocations(t, 2, byID("two.test__1234"), status), "by id")
	assert.Equal(t, allocsOfList, allocations(t, 2, list(), containers(10)), "a list of 2 x 10")
	assert.Equal(t, allocsOfList, allocations(t, 2, list(), containers(1000)), "a list of 2 x 1000")
}
