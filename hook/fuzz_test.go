package hook_test

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
	"github.com/criproxy/criproxy/hook"
)

// nobody is a runtime that answers everything with the same ids.
type nobody struct {
	mu  sync.Mutex
	got map[string][]byte // :: method → the latest request
}

func (n *nobody) last(method string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return string(n.got["/runtime.v1.RuntimeService/"+method])
}

func (n *nobody) Invoke(_ context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
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
		b, _ = proto.Marshal(m) // of valid messages
	}
	return codec.Deliver(reply, codec.NewFrame(b))
}

func (*nobody) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	panic("no call here streams")
}

// FuzzAnswers has a plugin answer anything to any request. Nothing panics, what the
// runtime gets is a message if the request was one, and the same bytes if the plugin's
// answer could not be used.
func FuzzAnswers(f *testing.F) {
	w := newWorld(f)
	var mu sync.Mutex
	var answer []byte
	w.raw("fuzz", "Ignore", []string{"PreRunPodSandbox", "PreCreateContainer", "PreUpdateContainerResources", "PreStartContainer", "PreUpdatePodSandboxResources"},
		func(context.Context, string, []byte) ([]byte, error) {
			mu.Lock()
			defer mu.Unlock()
			return answer, nil
		})
	runtime := &nobody{got: map[string][]byte{}}
	front := w.plugins.Around(runtime)
	call := func(ctx context.Context, method string, request []byte) (asked hook.Asked) {
		w.mu.Lock()
		w.events = nil
		w.mu.Unlock()
		_ = front.Invoke(ctx, "/runtime.v1.RuntimeService/"+method, codec.NewFrame(request), &codec.Frame{}) // whatever becomes of it
		for _, e := range happened[hook.Asked](w) {
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
	f.Add(byte(1), append(container, container...), entry(4, "\xff", "b").Marshal())
	f.Fuzz(func(t *testing.T, n byte, request, said []byte) {
		mu.Lock()
		answer = nil
		mu.Unlock()
		call(t.Context(), "RunPodSandbox", pod) // so that there is something to ask about
		call(t.Context(), "CreateContainer", container)
		mu.Lock()
		answer = said
		mu.Unlock()
		method := methods[int(n)%len(methods)]
		asked := call(t.Context(), method, request)
		if asked.Plugin == "" || len(asked.Changes) == 0 || asked.Err != nil {
			assert.Equal(t, string(request), runtime.last(method), "nobody changed anything")
			return
		}
		in := map[string]proto.Message{
			"RunPodSandbox": &runtimeapi.RunPodSandboxRequest{}, "CreateContainer": &runtimeapi.CreateContainerRequest{},
			"UpdateContainerResources": &runtimeapi.UpdateContainerResourcesRequest{}, "StartContainer": &runtimeapi.StartContainerRequest{},
			"UpdatePodSandboxResources": &runtimeapi.UpdatePodSandboxResourcesRequest{},
		}[method]
		if proto.Unmarshal(request, in) == nil {
			assert.NoError(t, proto.Unmarshal([]byte(runtime.last(method)), in))
		}
	})
}

// FuzzParseFile reads anything as the file of a plugin.
func FuzzParseFile(f *testing.F) {
	f.Add([]byte(`{"remote-endpoint": "/x", "runtime-hooks": ["PreRunPodSandbox"], "timeout": "2s", "pod": {"namespace": "a", "labels": {"b": "c"}}}`))
	f.Add([]byte(`{"remote-endpoint": "unix:///x//y", "timeout": 1e300}`))
	f.Add([]byte("\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, _, err := hook.ParseFile(data)
		if err != nil {
			assert.Nil(t, file)
			return
		}
		assert.True(t, filepath.IsAbs(file.Endpoint))
		assert.Positive(t, file.Timeout)
		assert.True(t, utf8.ValidString(file.Endpoint))
	})
}
