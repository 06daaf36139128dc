package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/fakecri"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/server/listen"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// A node is the assembled proxy in front of runtimes in memory, all on real
// sockets, and a client of it.
type node struct {
	testing.TB
	cfg      *config.Config
	runtimes []*testkit.Machine // as in cfg.Backends, the primary first
	proxy    *Proxy             // nil while it is stopped
	machine  Machine            // of the next proxy that starts
	stop     func()             // stops it
	cc       *grpc.ClientConn
	calls    struct {
		sync.Mutex
		ctx  context.Context
		made time.Time
	}
	runtimeapi.RuntimeServiceClient
	runtimeapi.ImageServiceClient
}

// A machineConfig describes a machine for a test.
type machineConfig struct {
	fakecri.Config
	backend config.Backend // without the address
	absent  bool           // it is not started
	wire    *testkit.Wire
}

// impatient has a runtime that hangs count as slow and gone as soon as it does for users, for tests that wait for that. Sooner
// would be wrong: on a busy machine even a runtime in memory has answered nothing for 3 s.
func impatient(c *config.Config) {
	c.ListBudget, c.GoneAfter = backend.DefaultBudget, backend.DefaultSilence
}

// newNode starts machines and a proxy in front of them, until the test ends. Without a configuration
// they are a primary and beta.io. The proxy waits as long as the test does, because on a busy machine
// a runtime may be silent for a while. See impatient.
func newNode(t testing.TB, change func(*config.Config), machines ...machineConfig) *node {
	t.Helper()
	dir := testkit.SocketDir(t)
	if machines == nil {
		machines = []machineConfig{{}, {backend: config.Backend{Name: "beta.io"}}}
	}
	n := &node{TB: t, cfg: &config.Config{Listen: filepath.Join(dir, "front.sock"), StateDir: filepath.Join(dir, "state"), EventInterval: 100 * time.Millisecond, ListBudget: testkit.Patience, GoneAfter: testkit.Patience, Hooks: filepath.Join(dir, "hooks.d")}}
	for i, m := range machines {
		path := filepath.Join(dir, fmt.Sprintf("%d.sock", i))
		one := testkit.NewMachine(t, m.backend.Name, path, m.Config)
		one.Wire = m.wire
		n.runtimes = append(n.runtimes, one)
		m.backend.Address = path
		n.cfg.Backends = append(n.cfg.Backends, m.backend)
		if !m.absent {
			one.Start()
		}
	}
	if change != nil {
		change(n.cfg)
	}
	require.NoError(t, Check(n.cfg))
	n.start()
	t.Cleanup(func() { n.stop() })
	n.connect()
	return n
}

// connect connects the client, instead of the one before it.
func (n *node) connect(more ...grpc.DialOption) {
	n.Helper()
	cc, err := grpc.NewClient("unix:"+n.cfg.Listen, append(more, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))...) // as kubelet
	require.NoError(n, err)
	n.cc = cc
	n.Cleanup(func() { cc.Close() }) // the error would change nothing
	n.RuntimeServiceClient, n.ImageServiceClient = runtimeapi.NewRuntimeServiceClient(n.cc), runtimeapi.NewImageServiceClient(n.cc)
}

// start starts the proxy, again if it was stopped.
func (n *node) start() {
	n.Helper()
	makeStateDir(n.cfg)
	p, err := New(n.cfg, Options{Machine: n.machine})
	require.NoError(n, err)
	// Not with listen.Unix: it changes the umask of the process, in which many tests run at once.
	open := func() (net.Listener, error) { return net.Listen("unix", n.cfg.Listen) }
	l, err := open()
	require.NoError(n, err)
	l = listen.KeepFile(n.cfg.Listen, l, open)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	p.UseListener(l)
	go func() { ended <- p.Run(ctx) }()
	n.proxy = p
	n.stop = sync.OnceFunc(func() {
		cancel()
		assert.NoError(n, <-ended)
	})
}

// inBothModes runs a test with either form of ids.
func inBothModes(t *testing.T, test func(t *testing.T, mode func(*config.Config))) {
	t.Helper()
	for _, ids := range []string{config.PrefixIDs, config.NativeIDs} {
		t.Run(ids, func(t *testing.T) {
			t.Parallel()
			test(t, func(c *config.Config) { c.IDs = ids })
		})
	}
}

// image returns the front name of the image that runtime i calls name.
func (n *node) image(i int, name string) string {
	if i == 0 {
		return name
	}
	return n.cfg.Backends[i].Name + "/" + name
}

// stateFile returns the path of the file with the cache of a backend.
func stateFile(cfg *config.Config, b config.Backend) backend.File {
	return (&Proxy{}).folder(cfg).File(Place{Name: nameOf(b), Address: addressOf(b)})
}

// known waits until the cache has all items of the runtimes, with their statuses: until the
// proxy has made enough rounds.
func (n *node) known() *node {
	n.Helper()
	for i, m := range n.runtimes {
		b := n.proxy.backends()[i]
		for range 3 { // the first round may have begun before, and the last one may not have ended
			rounds := len(m.Calls("ListContainers"))
			err := b.backend.Invoke(n.ctx(), runtimeapi.RuntimeService_StopPodSandbox_FullMethodName, &runtimeapi.StopPodSandboxRequest{PodSandboxId: "none"}, &runtimeapi.StopPodSandboxResponse{})
			require.NoError(n, err, "this changes nothing, which the proxy cannot know")
			testkit.Eventually(n, fmt.Sprintf("the cache has all of runtime %d", i), func() bool { return len(m.Calls("ListContainers")) > rounds })
		}
		for _, image := range m.Images() {
			testkit.Eventually(n, "the cache has an image", func() bool {
				return b.backend.Named(runtimeapi.ImageService_ListImages_FullMethodName, image.GetId())
			})
		}
	}
	return n
}

// isDown waits until the proxy considers runtime i down, and isUp until it considers it up.
func (n *node) isDown(i int) { n.Helper(); n.becomes(i, backend.Gone) }
func (n *node) isSlow(i int) { n.Helper(); n.becomes(i, backend.Slow) }
func (n *node) isUp(i int)   { n.Helper(); n.becomes(i, backend.Up) }

// becomes waits until a runtime is in a condition, and the history says so, which notes it a moment later.
func (n *node) becomes(i int, condition backend.Condition) {
	n.Helper()
	testkit.Eventually(n, fmt.Sprintf("runtime %d is %s", i, condition), func() bool {
		b := n.proxy.backends()[i]
		s := b.backend.State()
		return s.Condition == condition && (s.Seen || condition != backend.Up) && b.condition().State == condition.String()
	})
}

// changed waits until the history has a change of a kind, and returns the first one.
func changed(t testing.TB, p *Proxy, what string) (first capture.Change) {
	t.Helper()
	testkit.Eventually(t, "the history has the change "+what, func() bool {
		all := p.changes.Latest()
		i := slices.IndexFunc(all, func(c capture.Change) bool { return c.What == what })
		if i >= 0 {
			first = all[i]
		}
		return i >= 0
	})
	return first
}

// A pod is a pod that a test has run.
type pod struct {
	config     *runtimeapi.PodSandboxConfig
	sandbox    string   // in front
	containers []string // in front
}

// run runs a pod on runtime i with n containers, of which the last has exited.
func (n *node) run(i int, name string, containers int) *pod {
	n.Helper()
	p := &pod{config: testkit.PodConfig(name)}
	if i > 0 {
		p.config.Annotations["kubernetes.io/target-runtime"] = n.cfg.Backends[i].Name
	}
	ran, err := n.RunPodSandbox(n.ctx(), &runtimeapi.RunPodSandboxRequest{Config: p.config})
	require.NoError(n, err)
	p.sandbox = ran.GetPodSandboxId()
	pulled, err := n.PullImage(n.ctx(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: n.image(i, "busybox")}, SandboxConfig: p.config})
	require.NoError(n, err)
	for c := range containers {
		created, err := n.CreateContainer(n.ctx(), &runtimeapi.CreateContainerRequest{
			PodSandboxId: p.sandbox, SandboxConfig: p.config,
			Config: &runtimeapi.ContainerConfig{
				Metadata: &runtimeapi.ContainerMetadata{Name: fmt.Sprint("c", c)},
				Image:    &runtimeapi.ImageSpec{Image: pulled.GetImageRef(), UserSpecifiedImage: n.image(i, "busybox")},
				Labels:   map[string]string{"pod": name, "container": fmt.Sprint("c", c)},
			},
		})
		require.NoError(n, err)
		p.containers = append(p.containers, created.GetContainerId())
		_, err = n.StartContainer(n.ctx(), &runtimeapi.StartContainerRequest{ContainerId: created.GetContainerId()})
		require.NoError(n, err)
	}
	if containers > 1 {
		_, err = n.StopContainer(n.ctx(), &runtimeapi.StopContainerRequest{ContainerId: p.containers[containers-1]})
		require.NoError(n, err)
	}
	return p
}

// ctx returns a context with a deadline for one call. Calls of the same second share one, because
// each keeps memory until its deadline.
func (n *node) ctx() context.Context {
	n.calls.Lock()
	defer n.calls.Unlock()
	if time.Since(n.calls.made) > time.Second {
		ctx, cancel := context.WithTimeout(n.Context(), 2*testkit.Patience)
		context.AfterFunc(n.Context(), cancel)
		n.calls.ctx, n.calls.made = ctx, time.Now()
	}
	return n.calls.ctx
}

// A listing is a list in both of its forms.
type listing struct {
	name     string
	unary    func(n *node, opts ...grpc.CallOption) ([]proto.Message, error)
	streamed func(n *node, opts ...grpc.CallOption) ([]proto.Message, error)
}

// both makes the list in both of its forms, and asserts that they have the same items.
func (l listing) both(n *node) (unary, streamed []proto.Message) {
	n.Helper()
	unary, err := l.unary(n)
	require.NoError(n, err, l.name)
	streamed, err = l.streamed(n)
	require.NoError(n, err, "%s streamed", l.name)
	assert.ElementsMatch(n, idsOf(unary), idsOf(streamed), l.name)
	return unary, streamed
}

// newListing makes a listing of two methods with their requests, and of a function that returns the items of a reply.
func newListing[Q, R, SQ, SR any, M proto.Message](name string,
	unary func(*node, context.Context, *Q, ...grpc.CallOption) (*R, error), request *Q, items func(*R) []M,
	stream func(*node, context.Context, *SQ, ...grpc.CallOption) (grpc.ServerStreamingClient[SR], error), streamRequest *SQ, batch func(*SR) []M,
) listing {
	return listing{name,
		func(n *node, opts ...grpc.CallOption) ([]proto.Message, error) {
			r, err := unary(n, n.ctx(), request, opts...)
			return messages(items(r)), err
		},
		func(n *node, opts ...grpc.CallOption) ([]proto.Message, error) {
			s, err := stream(n, n.ctx(), streamRequest, opts...)
			return collect(s, err, batch)
		},
	}
}

func listPods(f *runtimeapi.PodSandboxFilter) listing {
	return newListing("pods", (*node).ListPodSandbox, &runtimeapi.ListPodSandboxRequest{Filter: f}, (*runtimeapi.ListPodSandboxResponse).GetItems,
		(*node).StreamPodSandboxes, &runtimeapi.StreamPodSandboxesRequest{Filter: f}, (*runtimeapi.StreamPodSandboxesResponse).GetPodSandboxes)
}

func listContainers(f *runtimeapi.ContainerFilter) listing {
	return newListing("containers", (*node).ListContainers, &runtimeapi.ListContainersRequest{Filter: f}, (*runtimeapi.ListContainersResponse).GetContainers,
		(*node).StreamContainers, &runtimeapi.StreamContainersRequest{Filter: f}, (*runtimeapi.StreamContainersResponse).GetContainers)
}

func listImages() listing {
	return newListing("images", (*node).ListImages, &runtimeapi.ListImagesRequest{}, (*runtimeapi.ListImagesResponse).GetImages,
		(*node).StreamImages, &runtimeapi.StreamImagesRequest{}, (*runtimeapi.StreamImagesResponse).GetImages)
}

func listContainerStats(f *runtimeapi.ContainerStatsFilter) listing {
	return newListing("container stats", (*node).ListContainerStats, &runtimeapi.ListContainerStatsRequest{Filter: f}, (*runtimeapi.ListContainerStatsResponse).GetStats,
		(*node).StreamContainerStats, &runtimeapi.StreamContainerStatsRequest{Filter: f}, (*runtimeapi.StreamContainerStatsResponse).GetContainerStats)
}

func listPodStats(f *runtimeapi.PodSandboxStatsFilter) listing {
	return newListing("pod stats", (*node).ListPodSandboxStats, &runtimeapi.ListPodSandboxStatsRequest{Filter: f}, (*runtimeapi.ListPodSandboxStatsResponse).GetStats,
		(*node).StreamPodSandboxStats, &runtimeapi.StreamPodSandboxStatsRequest{Filter: f}, (*runtimeapi.StreamPodSandboxStatsResponse).GetPodSandboxStats)
}

func listMetrics() listing {
	return newListing("pod metrics", (*node).ListPodSandboxMetrics, &runtimeapi.ListPodSandboxMetricsRequest{}, (*runtimeapi.ListPodSandboxMetricsResponse).GetPodMetrics,
		(*node).StreamPodSandboxMetrics, &runtimeapi.StreamPodSandboxMetricsRequest{}, (*runtimeapi.StreamPodSandboxMetricsResponse).GetPodSandboxMetrics)
}

func allListings() []listing {
	return []listing{listPods(nil), listContainers(nil), listImages(), listContainerStats(nil), listPodStats(nil), listMetrics()}
}

func messages[M proto.Message](items []M) []proto.Message {
	all := make([]proto.Message, len(items))
	for i, item := range items {
		all[i] = item
	}
	return all
}

// collect receives a stream to its end. It refuses a message without an item, because
// api.proto requires at least one.
func collect[R any, M proto.Message](s grpc.ServerStreamingClient[R], err error, items func(*R) []M) ([]proto.Message, error) {
	if err != nil {
		return nil, err
	}
	var all []proto.Message
	for {
		r, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		if len(items(r)) == 0 {
			return all, errors.New("a message of a stream has no item")
		}
		all = append(all, messages(items(r))...)
	}
}

// idOf returns the id of an item of any list.
func idOf(m proto.Message) string {
	switch m := m.(type) {
	case *runtimeapi.PodSandboxMetrics:
		return m.GetPodSandboxId()
	case interface {
		GetAttributes() *runtimeapi.ContainerAttributes
	}:
		return m.GetAttributes().GetId()
	case interface {
		GetAttributes() *runtimeapi.PodSandboxAttributes
	}:
		return m.GetAttributes().GetId()
	}
	return m.(interface{ GetId() string }).GetId()
}

// lists asserts that the list of pods has these, and no others.
func (n *node) lists(sandboxes ...string) {
	n.Helper()
	pods, err := listPods(nil).unary(n)
	require.NoError(n, err)
	assert.ElementsMatch(n, sandboxes, idsOf(pods))
}

func idsOf(items []proto.Message) []string {
	ids := make([]string, len(items))
	for i, item := range items {
		ids[i] = idOf(item)
	}
	return ids
}

func assertProto(t testing.TB, want, got proto.Message) {
	t.Helper()
	if !proto.Equal(want, got) {
		assert.Fail(t, "not equal", "want %v\ngot  %v", want, got)
	}
}
