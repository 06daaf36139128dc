package plugins_test

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/hook/hookapi"
	"github.com/criproxy/criproxy/internal/plugins"
)

// A constant is a runtime that answers everything with the same ids.
type constant struct {
	mu  sync.Mutex
	got map[string][]byte // :: method → the latest request
}

func (n *constant) last(method string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return string(n.got["/runtime.v1.RuntimeService/"+method])
}

func (n *constant) Invoke(_ context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	f, err := codec.FrameOf(args)
	if err != nil {
		return err
	}
	n.mu.Lock()
	n.got[method] = append([]byte{}, f.Bytes()...)
	n.mu.Unlock()
	answers := map[string]proto.Message{
		runtimeapi.RuntimeService_RunPodSandbox_FullMethodName:   &runtimeapi.RunPodSandboxResponse{PodSandboxId: "p"},
		runtimeapi.RuntimeService_CreateContainer_FullMethodName: &runtimeapi.CreateContainerResponse{ContainerId: "c"},
	}
	var b []byte
	if m := answers[method]; m != nil {
		b, _ = proto.Marshal(m) // the messages are valid
	}
	return codec.Decode(reply, codec.NewFrame(b))
}

func (*constant) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	panic("no call here streams")
}

// saying is a plugin that gives every call the same answer.
type saying struct{ answer []byte }

func (s *saying) Invoke(_ context.Context, _ string, _, reply any, _ ...grpc.CallOption) error {
	return codec.Decode(reply, codec.NewFrame(s.answer))
}

func (*saying) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	panic("no call here streams")
}

// FuzzAnswers checks that, for any request and any answer of a plugin, nothing panics, the runtime
// gets a valid message if the request was one, and it gets the same bytes if the plugin's answer
// was not usable.
func FuzzAnswers(f *testing.F) {
	w := newWorld(f)
	w.raw("fuzz", "Ignore", []string{"PreRunPodSandbox", "PreCreateContainer", "PreUpdateContainerResources", "PreStartContainer", "PreUpdatePodSandboxResources"},
		func(context.Context, string, []byte) ([]byte, error) { return nil, nil })
	says := &saying{}
	w.stop() // nothing else may happen during the test
	all, err := plugins.New(w.cfg)
	require.NoError(f, err)
	f.Cleanup(all.Close)
	all.AnswerBy("fuzz.json", says) // not over the network: that takes most of the time
	runtime := &constant{got: map[string][]byte{}}
	front := all.Around(runtime)
	call := func(ctx context.Context, method string, request []byte) (asked plugins.Asked) {
		w.mu.Lock()
		w.events = nil
		w.mu.Unlock()
		_ = front.Invoke(ctx, "/runtime.v1.RuntimeService/"+method, codec.NewFrame(request), &codec.Frame{}) // the call may fail
		for _, e := range happened[plugins.Asked](w) {
			asked = e
		}
		return asked
	}
	pod, err := proto.Marshal(&runtimeapi.RunPodSandboxRequest{Config: podConfig("web")})
	require.NoError(f, err)
	container, err := proto.Marshal(&runtimeapi.CreateContainerRequest{PodSandboxId: "p", Config: containerConfig(), SandboxConfig: podConfig("web")})
	require.NoError(f, err)
	update, err := proto.Marshal(&runtimeapi.UpdateContainerResourcesRequest{ContainerId: "c", Linux: containerConfig().Linux.Resources})
	require.NoError(f, err)
	methods := []string{"RunPodSandbox", "CreateContainer", "UpdateContainerResources", "StartContainer", "UpdatePodSandboxResources"}
	f.Add(byte(0), pod, entry(2, "a", "b").Marshal())
	f.Add(byte(1), container, join(entry(4, "A", "b"), sub(2, num(3, 5), str(6, ""))).Marshal())
	f.Add(byte(2), update, sub(2, num(2, -1), sub(8, str(1, "x"))).Marshal())
	f.Add(byte(1), container, join(entry(1, "x", "y"), sub(2, num(1, 1), num(2, 2), num(4, 4), num(5, -998), str(7, "1"), sub(8, str(1, "2MB")), entry(9, "memory.high", "2"), num(10, 3)), str(3, "/moved")).Marshal())
	f.Add(byte(0), pod, join(entry(1, "a", "b"), str(3, "/moved"), sub(4, num(3, 99), num(5, -1001), str(6, "0"))).Marshal())
	f.Add(byte(2), update, join(entry(1, "note", "n"), sub(2, num(3, 7), num(2, 1<<40), sub(8, str(1, "2MB"), num(2, 5)), entry(9, "a", ""))).Marshal())
	f.Add(byte(1), container, join(entry(4, "Z", "last"), entry(4, "B", "2"), entry(4, "M", "")).Marshal())
	f.Add(byte(1), append(container, container...), entry(4, "\xff", "b").Marshal())
	f.Fuzz(func(t *testing.T, n byte, request, said []byte) {
		says.answer = nil
		call(t.Context(), "RunPodSandbox", pod) // plugins are only asked about pods that exist
		call(t.Context(), "CreateContainer", container)
		says.answer = said
		method := methods[int(n)%len(methods)]
		asked := call(t.Context(), method, request)
		if asked.Plugin == "" || len(asked.Changes) == 0 || asked.Err != nil {
			assert.Equal(t, string(request), runtime.last(method), "no plugin changed anything")
			return
		}
		checkModel(t, method, request, said, runtime.last(method))
	})
}

// checkModel compares the request that the runtime got with the one that typed code makes of a request and an answer, if
// both are valid messages.
func checkModel(t *testing.T, method string, request, said []byte, got string) {
	t.Helper()
	var pod hookapi.PodSandboxHookResponse
	var container hookapi.ContainerResourceHookResponse
	podErr, containerErr := proto.Unmarshal(said, &pod), proto.Unmarshal(said, &container)
	check := func(in, is proto.Message, answered error, want func() proto.Message) {
		t.Helper()
		if proto.Unmarshal(request, in) != nil {
			return
		}
		require.NoError(t, proto.Unmarshal([]byte(got), is), "a message stays one")
		require.NoError(t, answered, "what is no message changes nothing")
		assertProto(t, want(), is)
	}
	switch method {
	case "RunPodSandbox":
		in := &runtimeapi.RunPodSandboxRequest{}
		check(in, &runtimeapi.RunPodSandboxRequest{}, podErr, func() proto.Message { return modelPod(in, &pod) })
	case "CreateContainer":
		in := &runtimeapi.CreateContainerRequest{}
		check(in, &runtimeapi.CreateContainerRequest{}, containerErr, func() proto.Message { return modelContainer(in, &container) })
	case "UpdateContainerResources":
		in := &runtimeapi.UpdateContainerResourcesRequest{}
		check(in, &runtimeapi.UpdateContainerResourcesRequest{}, containerErr, func() proto.Message { return modelUpdate(in, containerConfig(), &container) })
	}
}

// FuzzParseFile parses any bytes as the file of a plugin.
func FuzzParseFile(f *testing.F) {
	f.Add([]byte(`{"remote-endpoint": "/x", "runtime-hooks": ["PreRunPodSandbox"], "timeout": "2s", "pod": {"namespace": "a", "labels": {"b": "c"}}}`))
	f.Add([]byte(`{"remote-endpoint": "unix:///x//y", "timeout": 1e300}`))
	f.Add([]byte("\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, _, err := plugins.ParseFile(data)
		if err != nil {
			assert.Nil(t, file)
			return
		}
		assert.True(t, filepath.IsAbs(file.Endpoint))
		assert.Positive(t, file.Timeout)
		assert.True(t, utf8.ValidString(file.Endpoint))
	})
}
