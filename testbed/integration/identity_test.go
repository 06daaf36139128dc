package integration

import (
	"context"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/emptypb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/testbed/runtimes"
)

// A wire is a client's connection to a runtime through a proxy with no other runtime. A relay between proxy and
// runtime records what the proxy sends and receives.
type wire struct {
	cc    *grpc.ClientConn
	relay *relay
	used  map[string]bool // :: full method
}

func newWire(t testing.TB, s *side) *wire {
	t.Helper()
	r := newRelay(t, s.Socket(), nil)
	p := inFrontOf(t, r.socket)
	return &wire{cc: raw(t, p.Socket()), relay: r, used: map[string]bool{}}
}

// call makes a call of frames, asserts that it is the same on both ends of the proxy, and returns its outcome.
func (w *wire) call(t testing.TB, method string, request []byte) outcome {
	t.Helper()
	return w.stream(t, method, request, nil)
}

// stream is call for an endless method; it ends the call when there are enough replies.
func (w *wire) stream(t testing.TB, method string, request []byte, enough func([]string) bool) outcome {
	t.Helper()
	ctx, key := marked(t.Context())
	sent := metadata.Pairs("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "blob-bin", "\x00\xff", mark, key)
	ctx = metadata.NewOutgoingContext(ctx, sent)
	got := call(t, ctx, w.cc, method, request, enough)
	w.used[method] = true

	// criproxy also requests a list that the runtime lacks as a stream, and the reverse.
	calls := slices.DeleteFunc(w.relay.find(key), func(p *passed) bool { return p.method != method })
	require.Len(t, calls, 1, "%s reaches the runtime once", method)
	requests, answer := calls[0].said()
	assert.Equal(t, []string{string(request)}, requests, "%s: what the runtime got", method)
	assert.Equal(t, sent, forwarded(calls[0].metadata), "%s: the metadata that the runtime got", method)
	assert.Equal(t, []string{"localhost"}, calls[0].metadata[":authority"])
	switch {
	case answer.status.Code() == codes.Unimplemented && got.status.Code() == codes.OK:
		// The only converted answer: a runtime's list, as the stream that the runtime lacks.
		assert.True(t, strings.HasPrefix(path.Base(method), "Stream"), method)
	case enough == nil:
		assert.Equal(t, answer, got, "%s: what the client got", method)
	default: // the runtime may have sent more after we stopped reading
		require.GreaterOrEqual(t, len(answer.replies), len(got.replies), method)
		assert.Equal(t, answer.replies[:len(got.replies)], got.replies, method)
		assert.Equal(t, answer.header, got.header, method)
	}
	return got
}

// ok is call with a stained message, for a call that must succeed. It decodes the reply.
func ok[M proto.Message](t testing.TB, w *wire, method string, request proto.Message, reply M) M {
	t.Helper()
	got := w.call(t, method, stained(t, request))
	require.Equal(t, codes.OK, got.status.Code(), "%s: %v", method, got.status)
	require.Len(t, got.replies, 1)
	require.NoError(t, proto.Unmarshal([]byte(got.replies[0]), reply))
	return reply
}

// stained encodes a message with unknown fields in it and in each message inside it.
func stained(t testing.TB, m proto.Message) []byte {
	t.Helper()
	m = proto.Clone(m)
	stain(m.ProtoReflect())
	return marshal(t, m)
}

func stain(m protoreflect.Message) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if fd.Message() == nil || fd.IsMap() {
			return true
		}
		if fd.IsList() {
			for i := range v.List().Len() {
				stain(v.List().Get(i).Message())
			}
			return true
		}
		stain(v.Message())
		return true
	})
	b := protowire.AppendVarint(protowire.AppendTag(nil, 5001, protowire.VarintType), 7)
	b = protowire.AppendString(protowire.AppendTag(b, 5002, protowire.BytesType), "two.test__from the future\xff")
	m.SetUnknown(b)
}

// rt and img are the full names of methods.
func rt(name string) string  { return "/" + v1 + ".RuntimeService/" + name }
func img(name string) string { return "/" + v1 + ".ImageService/" + name }

func TestASingleRuntimeGetsAndGivesTheSameBytes(t *testing.T) {
	b := start(t)
	for _, s := range b.sides() {
		t.Run(s.Containerd.Version, func(t *testing.T) {
			w := newWire(t, s)
			s.wholeLife(t, w)

			// Each method, with ids that do not exist, so that each call fails if it can.
			services := runtimeapi.File_staging_src_k8s_io_cri_api_pkg_apis_runtime_v1_api_proto.Services()
			count := 0
			for i := range services.Len() {
				for j := range services.Get(i).Methods().Len() {
					method := "/" + string(services.Get(i).FullName()) + "/" + string(services.Get(i).Methods().Get(j).Name())
					count++
					assert.True(t, w.used[method], "%s was called", method)
					if path.Base(method) != "GetContainerEvents" { // which has no end
						w.call(t, method, stained(t, unknownID(newRequest(t, method)).Interface()))
						w.call(t, method, nil)
					}
				}
			}
			assert.Equal(t, 43, count)

			got := w.call(t, rt("FromTheFuture"), []byte("\x0a\x03two"))
			assert.Equal(t, codes.Unimplemented, got.status.Code())
			got = w.call(t, "/containerd.services.version.v1.Version/Version", marshal(t, &emptypb.Empty{}))
			assert.Equal(t, codes.OK, got.status.Code(), got.status)
			require.Len(t, got.replies, 1)
			assert.Contains(t, got.replies[0], "v"+s.Containerd.Version+".")
			got = w.call(t, "/nobody.Knows/This", []byte("whatever\xff"))
			assert.Equal(t, codes.Unimplemented, got.status.Code())
		})
	}
}

// unknownID fills in the ids of a request with one that no runtime has.
func unknownID(m protoreflect.Message) protoreflect.Message {
	for _, field := range []protoreflect.Name{"pod_sandbox_id", "container_id"} {
		if fd := m.Descriptor().Fields().ByName(field); fd != nil {
			m.Set(fd, protoreflect.ValueOfString(strings.Repeat("0", 64)))
		}
	}
	return m
}

// wholeLife calls every method of CRI, in an order in which most of them succeed.
func (s *side) wholeLife(t *testing.T, w *wire) {
	events := make(chan outcome, 1)
	var all sync.WaitGroup
	defer all.Wait()
	gone := make(chan string, 1) // the id whose last event ends the stream
	eventWire := &wire{cc: w.cc, relay: w.relay, used: map[string]bool{}}
	listening := make(chan struct{})
	var once sync.Once
	all.Go(func() {
		defer close(events) // if the stream fails, require ends this goroutine, and the test must not wait for more
		defer once.Do(func() { close(listening) })
		var last string
		events <- eventWire.stream(t, rt("GetContainerEvents"), stained(t, &runtimeapi.GetEventsRequest{}), func(replies []string) bool {
			once.Do(func() { close(listening) })
			if last == "" {
				select {
				case last = <-gone:
				default:
					return false
				}
			}
			var e runtimeapi.ContainerEventResponse
			return proto.Unmarshal([]byte(replies[len(replies)-1]), &e) == nil &&
				e.ContainerId == last && e.ContainerEventType == runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT
		})
	})

	for _, verbose := range []bool{false, true} {
		ok(t, w, rt("Status"), &runtimeapi.StatusRequest{Verbose: verbose}, &runtimeapi.StatusResponse{})
	}
	ok(t, w, rt("Version"), &runtimeapi.VersionRequest{Version: "0.1.0"}, &runtimeapi.VersionResponse{})
	ok(t, w, rt("UpdateRuntimeConfig"), &runtimeapi.UpdateRuntimeConfigRequest{RuntimeConfig: &runtimeapi.RuntimeConfig{NetworkConfig: &runtimeapi.NetworkConfig{}}}, &runtimeapi.UpdateRuntimeConfigResponse{})
	w.call(t, rt("RuntimeConfig"), stained(t, &runtimeapi.RuntimeConfigRequest{}))

	config := s.PodConfig("identity")
	spec := &runtimeapi.ImageSpec{Image: s.reg.Image("testbed/app:1"), UserSpecifiedImage: "app", Annotations: map[string]string{"example.com/a": "b"}}
	pulled := ok(t, w, img("PullImage"), &runtimeapi.PullImageRequest{Image: spec, SandboxConfig: config, Auth: &runtimeapi.AuthConfig{Username: "a", Password: "b"}}, &runtimeapi.PullImageResponse{})
	ok(t, w, img("PullImage"), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: s.reg.Image("testbed/user:1")}}, &runtimeapi.PullImageResponse{})
	ok(t, w, img("ImageStatus"), &runtimeapi.ImageStatusRequest{Image: spec, Verbose: true}, &runtimeapi.ImageStatusResponse{})
	ok(t, w, img("ListImages"), &runtimeapi.ListImagesRequest{Filter: &runtimeapi.ImageFilter{Image: spec}}, &runtimeapi.ListImagesResponse{})
	ok(t, w, img("ImageFsInfo"), &runtimeapi.ImageFsInfoRequest{}, &runtimeapi.ImageFsInfoResponse{})

	pod := ok(t, w, rt("RunPodSandbox"), &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: "alt"}, &runtimeapi.RunPodSandboxResponse{}).PodSandboxId
	t.Cleanup(func() { // if the test fails early
		ctx := context.Background()
		s.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod})
		s.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod})
	})
	ok(t, w, rt("PodSandboxStatus"), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod, Verbose: true}, &runtimeapi.PodSandboxStatusResponse{})
	ok(t, w, rt("ListPodSandbox"), &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{Id: pod}}, &runtimeapi.ListPodSandboxResponse{})
	container := runtimes.ContainerConfig("app", pulled.ImageRef, "tick")
	container.Envs = []*runtimeapi.KeyValue{{Key: "SOME", Value: []byte("two.test__value")}}
	id := ok(t, w, rt("CreateContainer"), &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: container, SandboxConfig: config}, &runtimeapi.CreateContainerResponse{}).ContainerId
	ok(t, w, rt("StartContainer"), &runtimeapi.StartContainerRequest{ContainerId: id}, &runtimeapi.StartContainerResponse{})
	ok(t, w, rt("ContainerStatus"), &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true}, &runtimeapi.ContainerStatusResponse{})
	ok(t, w, rt("ListContainers"), &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{PodSandboxId: pod}}, &runtimeapi.ListContainersResponse{})
	resp := ok(t, w, rt("ExecSync"), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"app", "env"}, Timeout: 20}, &runtimeapi.ExecSyncResponse{})
	assert.Contains(t, string(resp.Stdout), "SOME=two.test__value\n")
	ok(t, w, rt("Exec"), &runtimeapi.ExecRequest{ContainerId: id, Cmd: []string{"app"}, Stdout: true}, &runtimeapi.ExecResponse{})
	ok(t, w, rt("Attach"), &runtimeapi.AttachRequest{ContainerId: id, Stdout: true}, &runtimeapi.AttachResponse{})
	ok(t, w, rt("PortForward"), &runtimeapi.PortForwardRequest{PodSandboxId: pod, Port: []int32{8080}}, &runtimeapi.PortForwardResponse{})
	ok(t, w, rt("ContainerStats"), &runtimeapi.ContainerStatsRequest{ContainerId: id}, &runtimeapi.ContainerStatsResponse{})
	ok(t, w, rt("ListContainerStats"), &runtimeapi.ListContainerStatsRequest{}, &runtimeapi.ListContainerStatsResponse{})
	ok(t, w, rt("PodSandboxStats"), &runtimeapi.PodSandboxStatsRequest{PodSandboxId: pod}, &runtimeapi.PodSandboxStatsResponse{})
	ok(t, w, rt("ListPodSandboxStats"), &runtimeapi.ListPodSandboxStatsRequest{}, &runtimeapi.ListPodSandboxStatsResponse{})
	ok(t, w, rt("UpdateContainerResources"), &runtimeapi.UpdateContainerResourcesRequest{ContainerId: id, Linux: &runtimeapi.LinuxContainerResources{CpuShares: 128}}, &runtimeapi.UpdateContainerResourcesResponse{})
	log := filepath.Join(config.LogDirectory, container.LogPath)
	fileWith(t, log, "tick")
	require.NoError(t, os.Rename(log, log+".1"))
	ok(t, w, rt("ReopenContainerLog"), &runtimeapi.ReopenContainerLogRequest{ContainerId: id}, &runtimeapi.ReopenContainerLogResponse{})

	// Methods that only one of the two has.
	for method, request := range map[string]proto.Message{
		"UpdatePodSandboxResources": &runtimeapi.UpdatePodSandboxResourcesRequest{PodSandboxId: pod, Overhead: &runtimeapi.LinuxContainerResources{}},
		"CheckpointContainer":       &runtimeapi.CheckpointContainerRequest{ContainerId: strings.Repeat("0", 64), Location: filepath.Join(s.Dir, "checkpoint.tar")},
		"CheckpointPod":             &runtimeapi.CheckpointPodRequest{PodSandboxId: pod, OutputPath: filepath.Join(s.Dir, "checkpoint")},
		"RestorePod":                &runtimeapi.RestorePodRequest{CheckpointPath: filepath.Join(s.Dir, "none")},
		"ListMetricDescriptors":     &runtimeapi.ListMetricDescriptorsRequest{},
		"ListPodSandboxMetrics":     &runtimeapi.ListPodSandboxMetricsRequest{},
		"StreamPodSandboxes":        &runtimeapi.StreamPodSandboxesRequest{},
		"StreamContainers":          &runtimeapi.StreamContainersRequest{Filter: &runtimeapi.ContainerFilter{Id: id}},
		"StreamContainerStats":      &runtimeapi.StreamContainerStatsRequest{},
		"StreamPodSandboxStats":     &runtimeapi.StreamPodSandboxStatsRequest{},
		"StreamPodSandboxMetrics":   &runtimeapi.StreamPodSandboxMetricsRequest{},
	} {
		w.call(t, rt(method), stained(t, request))
	}
	w.call(t, img("StreamImages"), stained(t, &runtimeapi.StreamImagesRequest{}))

	<-listening // otherwise the runtime keeps its events for the next subscriber
	gone <- id
	ok(t, w, rt("StopContainer"), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 20}, &runtimeapi.StopContainerResponse{})
	ok(t, w, rt("RemoveContainer"), &runtimeapi.RemoveContainerRequest{ContainerId: id}, &runtimeapi.RemoveContainerResponse{})
	ok(t, w, rt("StopPodSandbox"), &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod}, &runtimeapi.StopPodSandboxResponse{})
	ok(t, w, rt("RemovePodSandbox"), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}, &runtimeapi.RemovePodSandboxResponse{})
	ok(t, w, img("RemoveImage"), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: s.reg.Image("testbed/user:1")}}, &runtimeapi.RemoveImageResponse{})
	assert.Empty(t, s.pods(t))

	o := <-events
	assert.Equal(t, codes.Canceled, o.status.Code(), "by us: %v", o.status)
	assert.GreaterOrEqual(t, len(o.replies), 2)
	w.used[rt("GetContainerEvents")] = true
}
