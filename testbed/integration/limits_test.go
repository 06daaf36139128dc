package integration

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	criclient "k8s.io/cri-client/pkg"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/fakecri"
)

// kubeletsLimit is the longest message that the kubelet accepts, and criproxy by default.
const kubeletsLimit = 16 << 20

// itemSize is the approximate size of an item of the lists here: larger than in reality, so that filling is fast.
const itemSize = 4096

// full returns the sockets of two runtimes that hold n pods, containers and images each.
func full(t testing.TB, n int) []string {
	t.Helper()
	var sockets []string
	for i := range 2 {
		var pods []*runtimeapi.PodSandbox
		var containers []*runtimeapi.Container
		var images []*runtimeapi.Image
		for j := range n {
			id := fmt.Sprintf("%064x", i<<32|j)
			fill := map[string]string{"fill": strings.Repeat("x", itemSize)}
			pods = append(pods, &runtimeapi.PodSandbox{Id: id, Annotations: fill})
			containers = append(containers, &runtimeapi.Container{Id: id, PodSandboxId: id, ImageRef: "sha256:" + id, Annotations: fill})
			images = append(images, &runtimeapi.Image{Id: "sha256:" + id, Spec: &runtimeapi.ImageSpec{Annotations: fill}})
		}
		answers := map[string][]proto.Message{
			"Version":        {&runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: "full", RuntimeVersion: "1.0.0", RuntimeApiVersion: "v1"}},
			"ListPodSandbox": {&runtimeapi.ListPodSandboxResponse{Items: pods}},
			"ListContainers": {&runtimeapi.ListContainersResponse{Containers: containers}},
			"ListImages":     {&runtimeapi.ListImagesResponse{Images: images}},
		}
		for batch := range slices.Chunk(pods, 200) {
			answers["StreamPodSandboxes"] = append(answers["StreamPodSandboxes"], &runtimeapi.StreamPodSandboxesResponse{PodSandboxes: batch})
		}
		encoded := map[string][][]byte{}
		for method, messages := range answers {
			for _, m := range messages {
				encoded[method] = append(encoded[method], marshal(t, m))
			}
		}
		sockets = append(sockets, serve(t, func(method string, stream grpc.ServerStream) error {
			if !strings.HasPrefix(method, "/"+v1+".") {
				return status.Error(codes.Unimplemented, "unknown service")
			}
			if err := stream.RecvMsg(&codec.Frame{}); err != nil {
				return err
			}
			replies := encoded[path.Base(method)]
			if replies == nil {
				replies = [][]byte{nil}
			}
			for _, reply := range replies {
				if err := stream.SendMsg(codec.NewFrame(reply)); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	return sockets
}

// patient are arguments for a proxy on a busy machine: it gets more time for lists, and to end, for which it must first
// write its memory.
func patient(sockets []string) []string {
	return []string{"-connect", connect(sockets...), "-list-budget", "1m", "-state-dir", "none"}
}

func TestAMergedListOfFifteenMebibytesPasses(t *testing.T) {
	const each = 1830
	p := startProxy(t, patient(full(t, each))...)
	require.NoError(t, p.waitForAll(t.Context()))
	for _, method := range []string{rt("ListPodSandbox"), rt("ListContainers"), img("ListImages")} {
		got := call(t, t.Context(), raw(t, p.socket), method, nil, nil)
		require.Equal(t, codes.OK, got.status.Code(), "%s: %v", method, got.status)
		assert.Greater(t, len(got.replies[0]), 14<<20, method)
		assert.Less(t, len(got.replies[0]), kubeletsLimit, method)
	}
	runtime, images := kubelet(t, p.socket)
	pods, err := runtime.ListPodSandbox(t.Context(), nil)
	require.NoError(t, err)
	assert.Len(t, pods, 2*each)
	containers, err := runtime.ListContainers(t.Context(), nil)
	require.NoError(t, err)
	assert.Len(t, containers, 2*each)
	all, err := images.ListImages(t.Context(), nil)
	require.NoError(t, err)
	assert.Len(t, all, 2*each)
}

func TestAMergedListOverTheLimitSaysSo(t *testing.T) {
	const each = 2200
	sockets := full(t, each)
	// This cannot wait for lists, because lists do not pass.
	p := startProxy(t, patient(sockets)...)
	for _, method := range []string{rt("ListPodSandbox"), rt("ListContainers"), img("ListImages")} {
		var got outcome
		eventually(t, func() error { // criproxy may not have reached both runtimes yet
			got = call(t, t.Context(), raw(t, p.socket), method, nil, nil)
			if got.status.Code() == codes.Unavailable {
				return got.status.Err()
			}
			return nil
		})
		require.Equal(t, codes.ResourceExhausted, got.status.Code(), "%s: %v", method, got.status)
		assert.Contains(t, got.status.Message(), fmt.Sprint(kubeletsLimit), "the limit")
		assert.Contains(t, got.status.Message(), "2 backends", "it is the merged reply that is too large")
	}

	t.Run("a stream has no such limit", func(t *testing.T) {
		runtime, err := criclient.NewRemoteRuntimeServiceBuilder().WithEndpoint("unix://" + p.socket).WithConnectionTimeout(callTimeout).WithUseStreaming(true).Build(t.Context())
		require.NoError(t, err)
		defer runtime.Close(context.Background())
		pods, err := runtime.ListPodSandbox(t.Context(), nil)
		require.NoError(t, err)
		assert.Len(t, pods, 2*each)
	})

	t.Run("the limit can be set", func(t *testing.T) {
		p := startProxy(t, append(patient(sockets), "-max-message-bytes", fmt.Sprint(32<<20))...)
		require.NoError(t, p.waitForAll(t.Context(), grpc.MaxCallRecvMsgSize(32<<20)))
		got := call(t, t.Context(), raw(t, p.socket), rt("ListPodSandbox"), nil, nil)
		require.Equal(t, codes.OK, got.status.Code(), got.status)
		assert.Greater(t, len(got.replies[0]), kubeletsLimit)
	})
}

// The predecessors left gRPC's limit of 4 MiB in place, both ways.
func TestFiveMegabytesPass(t *testing.T) {
	const size = 5 << 20
	t.Run("to real runtimes", func(t *testing.T) {
		b := start(t)
		c := dial(t, b.proxy.socket, v1)
		for _, s := range b.sides() {
			p := run(t, c, s, "large")
			selector := map[string]string{"large": strings.Repeat("x", size)}
			resp, err := c.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{PodSandboxId: p.id, LabelSelector: selector}})
			require.NoError(t, err)
			assert.Empty(t, resp.Containers)
		}
		_, err := c.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{LabelSelector: map[string]string{"large": strings.Repeat("x", size)}}})
		assert.NoError(t, err, "to both at once")
	})
	t.Run("both ways", func(t *testing.T) {
		one, oneSocket := fake(t, fakecri.Config{})
		two, twoSocket := fake(t, fakecri.Config{})
		p := inFrontOf(t, oneSocket, twoSocket)
		c := dial(t, p.socket, v1)
		for name, rt := range map[string]*fakecri.Runtime{"": one, second: two} {
			config := &runtimeapi.PodSandboxConfig{
				Metadata:    &runtimeapi.PodSandboxMetadata{Name: "large", Uid: "large" + name},
				Annotations: map[string]string{"large": strings.Repeat("x", size)},
			}
			if name != "" {
				config.Annotations[target] = name
			}
			pod, err := c.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: config})
			require.NoError(t, err)
			require.Len(t, rt.Pods(), 1)
			resp, err := c.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod.PodSandboxId})
			require.NoError(t, err)
			assert.Len(t, resp.Status.Annotations["large"], size)
		}
		list, err := c.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
		require.NoError(t, err)
		assert.Len(t, list.Items, 2)
	})
	t.Run("but not seventeen", func(t *testing.T) {
		b := start(t)
		request := &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{LabelSelector: map[string]string{"large": strings.Repeat("x", 17<<20)}}}
		_, err := dial(t, b.proxy.socket, v1).ListContainers(t.Context(), request)
		assert.Equal(t, codes.ResourceExhausted, status.Code(err), err)
		_, direct := b.one.ListContainers(t.Context(), request)
		assert.Equal(t, status.Code(direct), status.Code(err), "as the runtime does")
		assert.ErrorContains(t, err, "criproxy: the request is 17825814 bytes, more than the limit of 16777216; raise -max-message-bytes")
	})
}
