package fakecri_test

import (
	"context"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/fakecri"
)

func TestStreamsComeInBatches(t *testing.T) {
	c := start(t, fakecri.Config{BatchSize: 2})
	sizes := func() (sizes [6][]int) {
		for i, stream := range []func() []int{
			streamed(c.StreamPodSandboxes, c, (*runtimeapi.StreamPodSandboxesResponse).GetPodSandboxes),
			streamed(c.StreamContainers, c, (*runtimeapi.StreamContainersResponse).GetContainers),
			streamed(c.StreamImages, c, (*runtimeapi.StreamImagesResponse).GetImages),
			streamed(c.StreamContainerStats, c, (*runtimeapi.StreamContainerStatsResponse).GetContainerStats),
			streamed(c.StreamPodSandboxStats, c, (*runtimeapi.StreamPodSandboxStatsResponse).GetPodSandboxStats),
			streamed(c.StreamPodSandboxMetrics, c, (*runtimeapi.StreamPodSandboxMetricsResponse).GetPodSandboxMetrics),
		} {
			sizes[i] = stream()
		}
		return sizes
	}
	assert.Equal(t, [6][]int{}, sizes())
	c.rt.Fill(5)
	want := []int{2, 2, 1}
	assert.Equal(t, [6][]int{want, want, want, want, want, want}, sizes())
}

// streamed returns a function that calls a method and returns the number of items in each message.
func streamed[Req, Reply, Item any](
	call func(ctx context.Context, r *Req, _ ...grpc.CallOption) (grpc.ServerStreamingClient[Reply], error), c *client, items func(*Reply) []Item,
) func() []int {
	return func() []int {
		stream, err := call(c.t.Context(), new(Req))
		require.NoError(c.t, err)
		var sizes []int
		for _, m := range receive(c.t, stream) {
			sizes = append(sizes, len(items(m)))
		}
		return sizes
	}
}

// receive returns all messages of a stream that ends with OK.
func receive[M any](t testing.TB, stream grpc.ServerStreamingClient[M]) []*M {
	t.Helper()
	var all []*M
	for {
		m, err := stream.Recv()
		if err == io.EOF {
			return all
		}
		require.NoError(t, err)
		all = append(all, m)
	}
}

func TestFilledListsAreAsLargeAsRealOnes(t *testing.T) {
	c := start(t, fakecri.Config{Seed: 1})
	const n = 19000 // more than 16 MiB
	c.rt.Fill(n - 1000)
	c.rt.Fill(1000)
	for name, list := range map[string]func() (proto.Message, int, error){
		"containers": func() (proto.Message, int, error) {
			r, err := c.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
			return r, len(r.GetContainers()), err
		},
		"pods": func() (proto.Message, int, error) {
			r, err := c.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
			return r, len(r.GetItems()), err
		},
		"images": func() (proto.Message, int, error) {
			r, err := c.ListImages(t.Context(), &runtimeapi.ListImagesRequest{})
			return r, len(r.GetImages()), err
		},
	} {
		m, count, err := list()
		require.NoError(t, err, name)
		assert.Equal(t, n, count, name)
		assert.Greater(t, proto.Size(m), 16<<20, name)
		assert.Less(t, proto.Size(m), 18<<20, name)
	}
	assert.Len(t, c.rt.Calls(), 3)

	one, err := c.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{LabelSelector: map[string]string{"io.kubernetes.pod.name": "filled-000001"}},
	})
	require.NoError(t, err)
	require.Len(t, one.GetContainers(), 1)
	first := one.GetContainers()[0]
	assert.Equal(t, first.GetImageId(), c.pull(first.GetImage().GetUserSpecifiedImage()), "images that Fill made can be pulled")
	_, err = c.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: first.GetPodSandboxId()})
	require.NoError(t, err)
	assert.Len(t, c.rt.Containers(), n-1)
}
