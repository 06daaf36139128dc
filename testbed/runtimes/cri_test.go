package runtimes_test

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/testbed/runtimes"
)

// bounds is a runtime that notes which of its calls have no deadline.
type bounds struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtimeapi.UnimplementedImageServiceServer
	unbounded chan string
}

func (b *bounds) note(ctx context.Context, call string) {
	if _, bounded := ctx.Deadline(); !bounded {
		b.unbounded <- call
	}
}

func (b *bounds) Version(ctx context.Context, _ *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	b.note(ctx, "Version")
	return &runtimeapi.VersionResponse{RuntimeApiVersion: "v1"}, nil
}

func (b *bounds) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	return &runtimeapi.ImageFsInfoResponse{}, nil
}

func (b *bounds) PullImage(ctx context.Context, _ *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	b.note(ctx, "PullImage")
	return &runtimeapi.PullImageResponse{ImageRef: "image"}, nil
}

// The kubelet's client bounds every call but PullImage, and a plain client none: issue 44.
func TestCallsOfRuntimesAreBounded(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	server := grpc.NewServer()
	fake := &bounds{unbounded: make(chan string, 10)}
	runtimeapi.RegisterRuntimeServiceServer(server, fake)
	runtimeapi.RegisterImageServiceServer(server, fake)
	go server.Serve(listener)
	t.Cleanup(server.Stop)

	conn, err := runtimes.Dial(socket)
	require.NoError(t, err)
	defer conn.Close()
	_, err = runtimeapi.NewRuntimeServiceClient(conn).Version(t.Context(), &runtimeapi.VersionRequest{})
	require.NoError(t, err)
	images, err := runtimes.Images(t.Context(), "unix://"+socket)
	require.NoError(t, err)
	defer images.Close(t.Context())
	_, err = images.PullImage(t.Context(), &runtimeapi.ImageSpec{Image: "image"}, nil, nil)
	require.NoError(t, err)

	close(fake.unbounded)
	var all []string
	for call := range fake.unbounded {
		all = append(all, call)
	}
	assert.Empty(t, all)
}
