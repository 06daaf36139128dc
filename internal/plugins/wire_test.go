package plugins_test

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/testing/protopack"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
)

// raw starts a plugin that is asked at points, and answers with the given bytes.
func (w *world) raw(name, policy string, points []string, answer func(ctx context.Context, method string, request []byte) ([]byte, error)) {
	w.Helper()
	path := filepath.Join(w.dir, name+".sock")
	l, err := net.Listen("unix", path)
	require.NoError(w, err)
	s := grpc.NewServer(grpc.ForceServerCodecV2(codec.Raw), grpc.MaxRecvMsgSize(32<<20), grpc.MaxSendMsgSize(32<<20),
		grpc.UnknownServiceHandler(func(_ any, ss grpc.ServerStream) error {
			method, _ := grpc.MethodFromServerStream(ss)
			var f codec.Frame
			if err := ss.RecvMsg(&f); err != nil {
				return err
			}
			b, err := answer(ss.Context(), method, append([]byte{}, f.Bytes()...))
			if err != nil {
				return err
			}
			return ss.SendMsg(codec.NewFrame(b))
		}))
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Serve(l) })
	w.Cleanup(func() { s.Stop(); wg.Wait() })
	w.file(name, fmt.Sprintf(`{"remote-endpoint": %q, "failure-policy": %q, "runtime-hooks": ["%s"], "timeout": %q}`, path, policy, strings.Join(points, `","`), w.timeout))
	w.until(name+" is ready", func() bool { return w.state(name).State == "ready" })
}

// str, num and sub write fields.
func str(n protowire.Number, s string) protopack.Message {
	return protopack.Message{protopack.Tag{Number: n, Type: protopack.BytesType}, protopack.String(s)}
}
func num(n protowire.Number, v int64) protopack.Message {
	return protopack.Message{protopack.Tag{Number: n, Type: protopack.VarintType}, protopack.Varint(v)}
}
func sub(n protowire.Number, parts ...protopack.Message) protopack.Message {
	return protopack.Message{protopack.Tag{Number: n, Type: protopack.BytesType}, protopack.LengthPrefix(join(parts...))}
}
func entry(n protowire.Number, k, v string) protopack.Message { return sub(n, str(1, k), str(2, v)) }
func join(parts ...protopack.Message) protopack.Message {
	var all protopack.Message
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// The test has the messages of plugins by hand, with the field numbers of KoordRuntimeProxy's api.proto and without
// our own .proto.
func TestTheWireIsKoordRuntimeProxys(t *testing.T) {
	w := newWorld(t)
	got := map[string][]byte{}
	var mu sync.Mutex
	resources := join(num(3, 77), str(6, "1-2"), num(1, 7), num(2, -1), num(4, 5), num(10, 6), num(5, -998), str(7, "0"),
		sub(8, str(1, "2MB"), num(2, 9)), entry(9, "memory.low", "3"))
	answers := map[string]protopack.Message{
		"PreRunPodSandboxHook":            join(entry(1, "label", "l"), entry(2, "annotation", "a"), str(3, "/moved"), sub(4, num(3, 21), str(6, "0-3"))),
		"PreCreateContainerHook":          join(entry(1, "annotation", "c"), sub(2, resources), str(3, "/moved"), entry(4, "E", "f")),
		"PreUpdateContainerResourcesHook": sub(2, num(3, 5), str(6, "1-2"), str(7, "0")),
	}
	w.raw("wire", "Fail", []string{"PreRunPodSandbox", "PostStopPodSandbox", "PreCreateContainer", "PreStartContainer",
		"PostStartContainer", "PostStopContainer", "PreUpdateContainerResources"},
		func(_ context.Context, method string, request []byte) ([]byte, error) {
			name, ok := strings.CutPrefix(method, "/runtime.v1alpha1.RuntimeHookService/")
			if !ok {
				return nil, fmt.Errorf("no method %s", method)
			}
			mu.Lock()
			defer mu.Unlock()
			got[name] = request
			return answers[name].Marshal(), nil
		})
	config := podConfig("web")
	ran, err := w.client.RunPodSandbox(w.ctx(), &runtimeapi.RunPodSandboxRequest{Config: config})
	require.NoError(t, err)
	container := containerConfig()
	container.Envs = container.Envs[:1]
	container.Linux.Resources.HugepageLimits = container.Linux.Resources.HugepageLimits[:1]
	id, err := w.create(ran.PodSandboxId, config, container)
	require.NoError(t, err)
	_, err = w.client.StartContainer(w.ctx(), &runtimeapi.StartContainerRequest{ContainerId: id})
	require.NoError(t, err)
	_, err = w.client.UpdateContainerResources(w.ctx(), &runtimeapi.UpdateContainerResourcesRequest{ContainerId: id, Linux: &runtimeapi.LinuxContainerResources{CpuShares: 8}})
	require.NoError(t, err)
	_, err = w.client.StopContainer(w.ctx(), &runtimeapi.StopContainerRequest{ContainerId: id})
	require.NoError(t, err)
	_, err = w.client.StopPodSandbox(w.ctx(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: ran.PodSandboxId})
	require.NoError(t, err)

	meta := sub(1, str(1, "web"), str(2, "uid-of-web"), str(3, "default"), num(4, 2))
	pod := func(labels, annotations []protopack.Message, parent string, shares int64) protopack.Message {
		return join(meta, join(labels...), join(annotations...), str(5, parent), sub(6, num(3, 10)), sub(7, num(3, shares), str(6, "0-3")))
	}
	app, note := entry(3, "app", "web"), entry(4, "note", "pod's")
	moved := []protopack.Message{entry(3, "app", "web"), entry(3, "label", "l")}
	noted := []protopack.Message{entry(4, "annotation", "a"), entry(4, "note", "pod's")}
	about := join(entry(6, "annotation", "a"), entry(6, "note", "pod's"), entry(7, "app", "web"), entry(7, "label", "l"))
	asked := func(shares int64) protopack.Message { // by the client
		return join(num(1, 100000), num(2, 50000), num(3, shares), num(4, 1<<20), num(5, 900), str(6, "0-3"),
			sub(8, str(1, "2MB"), num(2, 4)), entry(9, "memory.high", "1"))
	}
	set := func(shares int64) protopack.Message {
		return join(num(1, 7), num(2, -1), num(3, shares), num(4, 5), num(5, -998), str(6, "1-2"), str(7, "0"),
			sub(8, str(1, "2MB"), num(2, 9)), entry(9, "memory.high", "1"), entry(9, "memory.low", "3"), num(10, 6))
	}
	podResources := sub(5, num(3, 20), str(6, "0-3")) // the answer does not change them
	running := func(resources protopack.Message) protopack.Message {
		return join(meta, sub(2, str(1, "main"), num(2, 1), str(3, id)), entry(3, "annotation", "c"), entry(3, "note", "container's"),
			sub(4, resources), podResources, about, str(8, "/moved"), entry(9, "E", "f"))
	}
	want := map[string]protopack.Message{
		"PreRunPodSandboxHook":   pod([]protopack.Message{app}, []protopack.Message{note}, "/kubepods/web", 20),
		"PostStopPodSandboxHook": pod(moved, noted, "/moved", 20),
		"PreCreateContainerHook": join(meta, sub(2, str(1, "main"), num(2, 1)), entry(3, "note", "container's"), sub(4, asked(512)),
			podResources, about, str(8, "/kubepods/web"), entry(9, "Z", "last")),
		"PreStartContainerHook":           running(set(77)),
		"PostStartContainerHook":          running(set(77)),
		"PreUpdateContainerResourcesHook": running(asked(8)),
		"PostStopContainerHook":           running(set(5)),
	}
	mu.Lock()
	defer mu.Unlock()
	for name, message := range want {
		var is protopack.Message
		is.UnmarshalAbductive(got[name], nil)
		assert.Equal(t, message.Marshal(), got[name], "%s:\nwant %v\ngot  %v", name, message, is)
	}
	assert.Len(t, got, len(want))

	made := w.runtime.Calls("CreateContainer")[0].Request.(*runtimeapi.CreateContainerRequest)
	assertProto(t, &runtimeapi.LinuxContainerResources{
		CpuPeriod: 7, CpuQuota: -1, CpuShares: 77, MemoryLimitInBytes: 5, OomScoreAdj: -998, CpusetCpus: "1-2", CpusetMems: "0",
		HugepageLimits: []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: 9}}, Unified: map[string]string{"memory.high": "1", "memory.low": "3"}, MemorySwapLimitInBytes: 6,
	}, made.GetConfig().GetLinux().GetResources())
	assert.Len(t, made.GetConfig().GetEnvs(), 1)
	assertProto(t, &runtimeapi.KeyValue{Key: "E", Value: []byte("f")}, made.GetConfig().GetEnvs()[0])
	assert.Equal(t, map[string]string{"note": "container's", "annotation": "c"}, made.GetConfig().GetAnnotations())
}
