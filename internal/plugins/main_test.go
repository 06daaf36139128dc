package plugins_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/hook/plugin"
	"github.com/criproxy/criproxy/internal/fakecri"
	"github.com/criproxy/criproxy/internal/plugins"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds how long a test waits. It is long because the machine may be busy.
const patience = 30 * time.Second

// world has plugins, a runtime in memory behind them, and a client in front.
type world struct {
	testing.TB
	dir     string
	cfg     plugins.Config
	plugins *plugins.Plugins
	runtime *fakecri.Runtime
	wire    *wire
	client  runtimeapi.RuntimeServiceClient
	images  runtimeapi.ImageServiceClient
	stop    func()
	timeout time.Duration // of raw plugins

	mu     sync.Mutex
	events []plugins.Event
}

// wire is the connection to the runtime. It keeps the requests, and
// may fail.
type wire struct {
	*grpc.ClientConn
	mu       sync.Mutex
	requests map[string][][]byte // :: method → ...
	fail     func(method string) error
}

func (w *wire) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	f, err := codec.FrameOf(args)
	if err != nil {
		return err
	}
	short := method[strings.LastIndexByte(method, '/')+1:]
	w.mu.Lock()
	w.requests[short] = append(w.requests[short], append([]byte{}, f.Bytes()...))
	fail := w.fail
	w.mu.Unlock()
	if fail != nil {
		if err := fail(short); err != nil {
			return err
		}
	}
	return w.ClientConn.Invoke(ctx, method, f, reply, opts...)
}

// last returns the latest request of a method, and how many there were.
func (w *wire) last(method string) ([]byte, int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.requests[method]
	if len(all) == 0 {
		return nil, 0
	}
	return all[len(all)-1], len(all)
}

func (w *wire) failing(f func(method string) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail = f
}

func newWorld(t testing.TB) *world {
	t.Helper()
	dir := testkit.SocketDir(t)
	w := &world{TB: t, dir: dir, runtime: fakecri.New(fakecri.Config{Seed: 1}), timeout: patience}
	l, err := net.Listen("unix", filepath.Join(dir, "r.sock"))
	require.NoError(t, err)
	background(t, func(ctx context.Context) error { return w.runtime.ServeOn(ctx, l) })
	cc, err := grpc.NewClient("unix:"+filepath.Join(dir, "r.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec.Raw), grpc.MaxCallRecvMsgSize(16<<20), grpc.MaxCallSendMsgSize(16<<20)))
	require.NoError(t, err)
	t.Cleanup(func() { cc.Close() }) // the error would change nothing
	w.wire = &wire{ClientConn: cc, requests: map[string][][]byte{}}
	w.cfg, err = criadapter.Hooks(criadapter.HookOptions{})
	require.NoError(t, err)
	w.cfg.Folder = filepath.Join(dir, "hooks.d")
	require.NoError(t, os.Mkdir(w.cfg.Folder, 0o755))
	w.cfg.Skip = [2]string{"runtimeproxy.koordinator.sh/skip-hookserver", "true"}
	w.cfg.Servers = filepath.Join(dir, "servers.json")
	w.cfg.Watch = func(_ context.Context, e plugins.Event) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.events = append(w.events, e)
	}
	w.start()
	t.Cleanup(func() { w.stop() })
	return w
}

// start starts the plugins, again if they were stopped.
func (w *world) start() {
	var err error
	w.plugins, err = plugins.New(w.cfg)
	require.NoError(w, err)
	front := w.plugins.Around(w.wire)
	w.client, w.images = runtimeapi.NewRuntimeServiceClient(front), runtimeapi.NewImageServiceClient(front)
	w.stop = background(w, func(ctx context.Context) error {
		w.plugins.Run(ctx)
		return nil
	})
}

// background runs f until the test ends, or until it is stopped.
func background(t testing.TB, f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		assert.NoError(t, <-ended)
	})
	t.Cleanup(stop)
	return stop
}

// plug starts a plugin, and returns when it can be asked.
func (w *world) plug(p plugin.Plugin) (unplug func()) {
	w.Helper()
	p.Folder = w.cfg.Folder
	if p.Socket == "" {
		p.Socket = filepath.Join(w.dir, p.Name+".sock")
	}
	if p.Timeout == 0 {
		p.Timeout = patience // the machine may be busy
	}
	stop := background(w, p.Run)
	w.until(p.Name+" is ready", func() bool { return w.state(p.Name).State == "ready" })
	return func() {
		stop()
		w.until(p.Name+" is gone", func() bool { return w.state(p.Name).Name == "" })
	}
}

// file writes the file of a plugin, all at once.
func (w *world) file(name, content string) {
	w.Helper()
	next := filepath.Join(w.cfg.Folder, ".next")
	require.NoError(w, os.WriteFile(next, []byte(content), 0o644))
	require.NoError(w, os.Rename(next, filepath.Join(w.cfg.Folder, name+".json")))
}

func (w *world) state(name string) plugins.PluginState {
	for _, p := range w.plugins.State().Plugins {
		if p.Name == name+".json" {
			return p
		}
	}
	return plugins.PluginState{}
}

func (w *world) until(what string, holds func() bool) {
	w.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			require.Fail(w, "it did not happen: "+what)
		}
	}
}

// happened returns the events of one type.
func happened[E plugins.Event](w *world) []E {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []E
	for _, e := range w.events {
		if one, ok := e.(E); ok {
			all = append(all, one)
		}
	}
	return all
}

func (w *world) ctx() context.Context {
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	context.AfterFunc(w.Context(), cancel)
	return ctx
}

func podConfig(name string) *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata:    &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: "uid-of-" + name, Attempt: 2},
		Labels:      map[string]string{"app": name},
		Annotations: map[string]string{"note": "pod's"},
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent: "/kubepods/" + name,
			Overhead:     &runtimeapi.LinuxContainerResources{CpuShares: 10},
			Resources:    &runtimeapi.LinuxContainerResources{CpuShares: 20, CpusetCpus: "0-3"},
		},
	}
}

func containerConfig() *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata:    &runtimeapi.ContainerMetadata{Name: "main", Attempt: 1},
		Image:       &runtimeapi.ImageSpec{Image: "busybox"},
		Annotations: map[string]string{"note": "container's"},
		Envs: []*runtimeapi.KeyValue{
			{Key: "Z", Value: []byte("last")}, {Key: "A", Value: []byte("first")}, {Key: "M", Value: []byte("x=y")},
		},
		Linux: &runtimeapi.LinuxContainerConfig{Resources: &runtimeapi.LinuxContainerResources{
			CpuPeriod: 100000, CpuQuota: 50000, CpuShares: 512, MemoryLimitInBytes: 1 << 20, OomScoreAdj: 900,
			CpusetCpus: "0-3", HugepageLimits: []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: 4}, {PageSize: "1GB", Limit: 8}},
			Unified: map[string]string{"memory.high": "1"},
		}},
	}
}

// run runs a pod.
func (w *world) run(config *runtimeapi.PodSandboxConfig) string {
	w.Helper()
	ran, err := w.client.RunPodSandbox(w.ctx(), &runtimeapi.RunPodSandboxRequest{Config: config})
	require.NoError(w, err)
	return ran.GetPodSandboxId()
}

// create makes a container.
func (w *world) create(pod string, podConfig *runtimeapi.PodSandboxConfig, config *runtimeapi.ContainerConfig) (string, error) {
	w.Helper()
	_, err := w.images.PullImage(w.ctx(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: "busybox"}})
	require.NoError(w, err)
	made, err := w.client.CreateContainer(w.ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: config, SandboxConfig: podConfig})
	return made.GetContainerId(), err
}
