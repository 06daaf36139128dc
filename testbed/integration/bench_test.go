package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/proxy"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// second is the second runtime's name, and target the annotation that chooses a runtime.
const (
	second = "two.test"
	target = "kubernetes.io/target-runtime"
)

// handlers are the RuntimeClass handlers of the second runtime, each with its name on the runtime.
var handlers = map[string]string{"other": "", "two-alt": "alt"}

// passAnnotations makes a runtime put annotations of containers into runc's specification, from which tests read them.
// Each line of containerd uses its own part.
const passAnnotations = `
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
container_annotations = ["example.org/*"]
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
container_annotations = ["example.org/*"]
`

// A bench is two runtimes with a proxy in front of them.
type bench struct {
	reg      *runtimes.Registry
	one, two *side
	proxy    *proxy.Proxy
}

// A side is one of the runtimes.
type side struct {
	*runtimes.Containerd
	prefix string // of its front names; empty for the primary
	client        // connected directly, without the proxy
	reg    *runtimes.Registry
}

// id returns the front name of a pod or container.
func (s *side) id(back string) string {
	if s.prefix == "" || back == "" {
		return back
	}
	return s.prefix + "__" + back
}

// bare returns the back name of a pod or container, which must be this runtime's.
func (s *side) bare(t testing.TB, front string) string {
	t.Helper()
	back := strings.TrimPrefix(front, s.id("x")[:len(s.id("x"))-1])
	require.Equal(t, s.id(back), front, "an id of %s", s.Name)
	require.NotContains(t, back, "__")
	return back
}

// image returns the front name of an image or digest.
func (s *side) image(back string) string {
	if s.prefix == "" || back == "" {
		return back
	}
	return s.prefix + "/" + back
}

// app returns the back name of the image of containers.
func (s *side) app() string { return s.reg.Image("testbed/app:1") }

// choose puts a pod on this runtime.
func (s *side) choose(pod *runtimeapi.PodSandboxConfig) *runtimeapi.PodSandboxConfig {
	if s.prefix != "" {
		pod.Annotations[target] = s.prefix
	}
	return pod
}

// shared is the bench that most tests use.
var shared sharedBench

type sharedBench struct {
	once sync.Once
	*bench
	err  error
	dirs []string       // of the containerds, to check for leftovers
	undo []func() error // last first
}

// start returns the shared bench. The test that uses it leaves nothing on either runtime.
func start(t *testing.T) *bench {
	t.Helper()
	program, bin := criproxy(t), testbed.Require(t)
	shared.once.Do(func() { shared.err = shared.start(program, bin) })
	require.NoError(t, shared.err)
	t.Cleanup(func() {
		for _, s := range shared.sides() {
			assert.Empty(t, s.pods(t), "pods left on %s", s.Name)
			assert.Empty(t, s.containers(t), "containers left on %s", s.Name)
			if t.Failed() {
				s.clear()
			}
		}
	})
	return shared.bench
}

func (b *sharedBench) start(program string, bin build.Binaries) error {
	ctx := context.Background()
	reg, err := runtimes.StartRegistry(runtimes.RegistryConfig{App: bin.App})
	if err != nil {
		return err
	}
	b.undo = append(b.undo, reg.Close)
	b.bench = &bench{reg: reg}
	var errs [2]error
	var sides [2]*side
	var all sync.WaitGroup
	for i, s := range []struct{ prefix, version string }{{"", "1.7"}, {second, "2.4"}} {
		all.Go(func() {
			var c *runtimes.Containerd
			c, errs[i] = runtimes.StartContainerd(ctx, runtimes.Config{Version: s.version, Binaries: bin, Registry: reg.Addr, ExtraTOML: passAnnotations})
			sides[i] = &side{Containerd: c, prefix: s.prefix, reg: reg}
		})
	}
	all.Wait()
	for _, s := range sides {
		if s.Containerd == nil {
			continue
		}
		b.dirs = append(b.dirs, s.Dir)
		b.undo = append(b.undo, func() error { return s.Destroy(ctx) })
		conn, err := runtimes.Dial(s.Socket())
		if err != nil {
			return err
		}
		b.undo = append(b.undo, conn.Close)
		s.client = newClient(conn, v1)
	}
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	b.one, b.two = sides[0], sides[1]

	if b.proxy, err = proxy.Start(ctx, proxy.Config{Program: program, YAML: b.config()}); err != nil {
		return err
	}
	b.undo = append(b.undo, func() error {
		if _, alive := b.proxy.PID(); !alive {
			return fmt.Errorf("criproxy has ended\n%s", b.proxy.LogTail(60))
		}
		return b.proxy.Destroy(ctx)
	})
	return waitForAll(ctx, b.proxy)
}

// config is the configuration file of the proxy in front of both.
func (b *bench) config() string {
	text := fmt.Sprintf("backends:\n- address: %s\n- name: %s\n  address: %s\n  handlers:\n", b.one.Socket(), second, b.two.Socket())
	for front, back := range handlers {
		text += fmt.Sprintf("    %q: %q\n", front, back)
	}
	return text
}

// destroy takes everything down and fails if something is left.
func (b *sharedBench) destroy(ctx context.Context) error {
	var errs []error
	for i := len(b.undo) - 1; i >= 0; i-- {
		errs = append(errs, b.undo[i]())
	}
	for _, dir := range b.dirs {
		for _, left := range host.Leftovers(dir) {
			errs = append(errs, errors.New("left behind: "+left))
		}
	}
	return errors.Join(errs...)
}

func (b *bench) sides() []*side { return []*side{b.one, b.two} }

// other returns the other runtime.
func (b *bench) other(s *side) *side {
	if s == b.one {
		return b.two
	}
	return b.one
}

// each runs a test once for each runtime and version of CRI that clients speak, through the proxy.
func each(t *testing.T, test func(t *testing.T, b *bench, s *side, c client)) {
	b := start(t)
	for _, version := range []string{v1, v1alpha2} {
		c := dial(t, b.proxy.Socket(), version)
		for _, s := range b.sides() {
			t.Run(version+" on "+s.Containerd.Version, func(t *testing.T) { test(t, b, s, c) })
		}
	}
}

// pods returns the runtime's own list of pods, by id.
func (s *side) pods(t testing.TB) map[string]*runtimeapi.PodSandbox {
	t.Helper()
	resp, err := s.ListPodSandbox(context.Background(), &runtimeapi.ListPodSandboxRequest{})
	require.NoError(t, err)
	all := map[string]*runtimeapi.PodSandbox{}
	for _, p := range resp.Items {
		all[p.Id] = p
	}
	return all
}

// containers returns the runtime's own list of containers, by id.
func (s *side) containers(t testing.TB) map[string]*runtimeapi.Container {
	t.Helper()
	resp, err := s.ListContainers(context.Background(), &runtimeapi.ListContainersRequest{})
	require.NoError(t, err)
	all := map[string]*runtimeapi.Container{}
	for _, c := range resp.Containers {
		all[c.Id] = c
	}
	return all
}

// clear removes the remains of a failed test, so that they do not make the next one fail.
func (s *side) clear() {
	ctx := context.Background()
	resp, err := s.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return
	}
	for _, p := range resp.Items {
		s.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.Id})
		s.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.Id})
	}
}

// readAll reads all of r and closes it.
func readAll(r io.ReadCloser) string {
	defer r.Close()
	data, _ := io.ReadAll(r)
	return string(data)
}
