package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/proxy"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

func TestMain(m *testing.M) {
	klog.SetLogger(klog.Logger{}) // silence: the kubelet's client logs each failed call, and most faults cause some
	testbed.Main(m)
}

// two is the name of the second runtime.
const two = "two.test"

// patience bounds all waiting. It is long: the machine may be busy.
const patience = time.Minute

// A world is two runtimes, criproxy in front of them, and a kubelet's client.
type world struct {
	testing.TB
	rand     *rand.Rand
	reg      *runtimes.Registry
	runtimes [2]*runtimes.Containerd
	direct   [2]internalapi.RuntimeService // connected without criproxy
	ids      string                        // the mode of ids
	proxy    *proxy.Proxy
	witness  witness // of the calls of the watcher, and of others
	client   runtimeapi.RuntimeServiceClient
	kubelet  internalapi.RuntimeService
	images   internalapi.ImageManagerService
	told     []string

	mu     sync.Mutex
	stable map[string]bool // front ids of items that every list must have
	pods   [2][]*pod
	made   int
}

// A pod is a pod with a running container.
type pod struct {
	config        *runtimeapi.PodSandboxConfig
	id, container string // in front
}

func newWorld(t *testing.T, seed uint64, ids string) *world {
	w := &world{TB: t, rand: rand.New(rand.NewPCG(seed, 7)), ids: ids, stable: map[string]bool{}}
	w.reg = testbed.NewRegistry(t)
	for i, version := range []string{"1.7", "2.4"} {
		w.runtimes[i] = testbed.NewContainerd(t, w.reg, runtimes.Config{Version: version})
	}
	// The flight recorder must be full before the test measures the initial level.
	w.proxy = testbed.NewProxy(t, fmt.Sprintf("flightRecorder: 1048576\nids: %s\nbackends:\n- address: %s\n- name: %s\n  address: %s\n", ids, w.runtimes[0].Socket(), two, w.runtimes[1].Socket()))
	var err error
	for i, rt := range w.runtimes {
		w.direct[i], err = rt.Runtime(t.Context())
		require.NoError(t, err)
		t.Cleanup(func() { w.direct[i].Close(context.Background()) })
	}
	conn, err := runtimes.Dial(w.proxy.Socket(), grpc.WithChainUnaryInterceptor(w.witness.intercept))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() }) // an error changes nothing
	w.client = runtimeapi.NewRuntimeServiceClient(conn)
	w.kubelet, w.images = testbed.NewClients(t, w.proxy.Endpoint())
	for i := range w.runtimes {
		w.isUp(i)
		for range 2 {
			require.NoError(t, w.run(i))
		}
	}
	return w
}

// front returns the front name of id on runtime i.
func (w *world) front(i int, id string) string {
	if i == 0 || w.ids == config.NativeIDs {
		return id
	}
	return two + "__" + id
}

func (w *world) tell(format string, args ...any) {
	w.told = append(w.told, fmt.Sprintf("%s %s", time.Now().Format("15:04:05.000"), fmt.Sprintf(format, args...)))
}

func (w *world) require(err error) {
	w.Helper()
	require.NoError(w, err, "after:\n%s", strings.Join(w.told, "\n"))
}

// eventually returns when done returns nil.
func (w *world) eventually(what string, done func() error) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	defer cancel()
	w.require(host.Await(ctx, what, done))
}

// run creates a pod with a container on runtime i. It makes each call only once, even if the call fails.
func (w *world) run(i int) error {
	w.made++
	p := &pod{config: w.runtimes[i].PodConfig(fmt.Sprint("p", w.made))}
	image := w.reg.Image("testbed/app:1")
	if i == 1 {
		p.config.Annotations["kubernetes.io/target-runtime"] = two
		image = two + "/" + image
	}
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	defer cancel()
	var err error
	if p.id, err = w.kubelet.RunPodSandbox(ctx, p.config, ""); err != nil {
		return err
	}
	if _, err = w.images.PullImage(ctx, &runtimeapi.ImageSpec{Image: image}, nil, p.config); err != nil {
		return err
	}
	if p.container, err = w.kubelet.CreateContainer(ctx, p.id, runtimes.ContainerConfig("app", image), p.config); err != nil {
		return err
	}
	if err = w.kubelet.StartContainer(ctx, p.container); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pods[i] = append(w.pods[i], p)
	w.stable[p.id], w.stable[p.container] = true, true
	return nil
}

// remove stops and removes a pod of runtime i, once.
func (w *world) remove(i int) error {
	w.mu.Lock()
	p := w.pods[i][0]
	w.pods[i] = w.pods[i][1:]
	delete(w.stable, p.id)
	delete(w.stable, p.container)
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	defer cancel()
	if err := w.kubelet.StopPodSandbox(ctx, p.id); err != nil {
		return err
	}
	return w.kubelet.RemovePodSandbox(ctx, p.id)
}

// ask makes a request on criproxy's admin socket.
func (w *world) ask(path string) (string, error) {
	answer, err := proxy.Ask(w.Context(), w.proxy.Admin(), path)
	return string(answer), err
}

// isUp waits until criproxy considers runtime i up, isDown until it considers it down.
func (w *world) isUp(i int)   { w.Helper(); w.isAs(i, "up") }
func (w *world) isDown(i int) { w.Helper(); w.isAs(i, "gone") }

func (w *world) isAs(i int, state string) {
	w.Helper()
	w.eventually(fmt.Sprintf("runtime %d is %s", i, state), func() error {
		var status struct {
			Backends []struct{ State, Error string }
		}
		if err := proxy.AskJSON(w.Context(), w.proxy.Admin(), "/status", &status); err != nil {
			return err
		}
		if b := status.Backends[i]; b.State != state {
			return fmt.Errorf("it is %s: %s", b.State, b.Error)
		}
		return nil
	})
}

// listed returns the ids of all pods and containers in a client's lists, with their states, as words.
func listed(ctx context.Context, c internalapi.RuntimeService, name func(string) string) ([]string, error) {
	pods, err := c.ListPodSandbox(ctx, nil)
	if err != nil {
		return nil, err
	}
	containers, err := c.ListContainers(ctx, nil)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, p := range pods {
		all = append(all, fmt.Sprintf("pod %s %s", name(p.GetId()), p.GetState()))
	}
	for _, c := range containers {
		all = append(all, fmt.Sprintf("container %s %s", name(c.GetId()), c.GetState()))
	}
	slices.Sort(all)
	return all, nil
}

// resident returns the memory of a process in bytes.
func resident(pid int) int64 {
	data, _ := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "statm"))
	var size, rss int64
	_, _ = fmt.Sscan(string(data), &size, &rss) // 0 if it has gone
	return rss * int64(os.Getpagesize())
}
