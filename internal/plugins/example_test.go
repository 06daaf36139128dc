package plugins_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/hook/plugin"
	"github.com/criproxy/criproxy/internal/plugins"
)

// Example has a plugin that labels each pod before the runtime gets it.
func Example() {
	folder, err := os.MkdirTemp("", "hook")
	check(err)
	defer os.RemoveAll(folder)
	ctx, stop := context.WithCancel(context.Background())
	p := plugin.Plugin{Name: "tier", Folder: folder, Socket: filepath.Join(folder, "s"), PreRunPodSandbox: func(_ context.Context, pod *plugin.Pod) (*plugin.PodAnswer, error) {
		return &plugin.PodAnswer{Labels: map[string]string{"tier": "batch"}}, nil
	}}
	ended := make(chan error)
	go func() { ended <- p.Run(ctx) }()
	for _, err := os.Stat(filepath.Join(folder, "tier.json")); err != nil; _, err = os.Stat(filepath.Join(folder, "tier.json")) {
	}

	cfg, err := criadapter.Hooks(criadapter.HookOptions{})
	check(err)
	cfg.Folder = folder
	plugins, err := plugins.New(cfg)
	check(err)
	client := runtimeapi.NewRuntimeServiceClient(plugins.Around(runtime{}))
	_, err = client.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{Labels: map[string]string{"app": "web"}}})
	check(err)
	plugins.Close()
	stop()
	check(<-ended)
	// Output:
	// RunPodSandbox with labels map[app:web tier:batch]
}

// runtime prints the requests that it gets.
type runtime struct{}

func (runtime) Invoke(_ context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	request, err := codec.FrameOf(args)
	check(err)
	var run runtimeapi.RunPodSandboxRequest
	check(proto.Unmarshal(request.Bytes(), &run))
	fmt.Println(filepath.Base(method), "with labels", run.GetConfig().GetLabels())
	answer, err := proto.Marshal(&runtimeapi.RunPodSandboxResponse{PodSandboxId: "1"})
	check(err)
	return codec.Decode(reply, codec.NewFrame(answer))
}

func (runtime) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	panic("no call here streams")
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
