package integration

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/proxy"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// A move is a node on its way from one containerd to another, as docs/migration.md describes it.
type move struct {
	testing.TB
	old, new *runtimes.Containerd
	proxy    *proxy.Proxy
	program  string                     // of criproxy
	runtime  internalapi.RuntimeService // kubelet's
	images   internalapi.ImageManagerService
	running  map[string]*running // :: name → pod
}

// A running is a pod with a container.
type running struct {
	*runtimes.Containerd // the pod's runtime
	config               *runtimeapi.PodSandboxConfig
	sandbox, container   string
}

// write writes criproxy's configuration file, and returns when criproxy uses it.
func (m *move) write(text string) {
	m.Helper()
	_, before, err := m.proxy.LogLines(0)
	require.NoError(m, err)
	require.NoError(m, m.proxy.Configure(text))
	eventually(m, func() error {
		if lines, _, err := m.proxy.LogLines(before, `"Reloaded`); err != nil || len(lines) == 0 {
			return fmt.Errorf("it has not read its configuration again (%v):\n%s", err, m.proxy.LogTail(5))
		}
		return nil
	})
}

// status returns how many pods criproxy says each runtime has.
func (m *move) status() map[string]int {
	m.Helper()
	r := command(m, m.program, "status", "-o", "json", "-admin", m.proxy.Admin())
	require.Zero(m, r.code, r.stderr)
	var status struct {
		Backends []struct {
			Name string
			Pods int
		}
	}
	require.NoError(m, json.Unmarshal([]byte(r.stdout), &status))
	pods := map[string]int{}
	for _, b := range status.Backends {
		pods[b.Name] = b.Pods
	}
	return pods
}

// run creates a pod as kubelet does, and asserts on which runtime it is. It pulls the image if it is missing.
func (m *move) run(name, image, handler string, whose *runtimes.Containerd) {
	m.Helper()
	config := whose.PodConfig(name)
	config.Annotations["kubernetes.io/config.seen"] = time.Now().Format(time.RFC3339Nano)
	sandbox, err := m.runtime.RunPodSandbox(m.Context(), config, handler)
	require.NoError(m, err)
	p := &running{Containerd: whose, config: config, sandbox: sandbox}
	m.running[name] = p
	m.restart(p, image)
}

// restart creates the next container of a pod, or its first.
func (m *move) restart(p *running, image string) {
	m.Helper()
	spec := &runtimeapi.ImageSpec{Image: image, Annotations: p.config.Annotations}
	status, err := m.images.ImageStatus(m.Context(), spec, false)
	require.NoError(m, err)
	id := status.Image.GetId()
	if status.Image == nil {
		id, err = m.images.PullImage(m.Context(), spec, nil, p.config)
		require.NoError(m, err)
	}
	if p.container != "" {
		require.NoError(m, m.runtime.StopContainer(m.Context(), p.container, 0))
		require.NoError(m, m.runtime.RemoveContainer(m.Context(), p.container))
	}
	p.container, err = m.runtime.CreateContainer(m.Context(), p.sandbox, runtimes.ContainerConfig("app", id, "sleep"), p.config)
	require.NoError(m, err)
	require.NoError(m, m.runtime.StartContainer(m.Context(), p.container))
}

// remove removes a pod, as kubelet does.
func (m *move) remove(name string) {
	m.Helper()
	p := m.running[name]
	require.NoError(m, m.runtime.StopContainer(m.Context(), p.container, 0))
	require.NoError(m, m.runtime.StopPodSandbox(m.Context(), p.sandbox))
	require.NoError(m, m.runtime.RemovePodSandbox(m.Context(), p.sandbox))
	delete(m.running, name)
}

// sandboxes returns all sandboxes of a runtime or of criproxy.
func (m *move) sandboxes(of internalapi.RuntimeService) []string {
	m.Helper()
	all, err := of.ListPodSandbox(m.Context(), nil)
	require.NoError(m, err)
	return slices.Sorted(slices.Values(ids(all, (*runtimeapi.PodSandbox).GetId)))
}

// all asserts that each pod is on its runtime under the id that kubelet knows, is in kubelet's lists, and works.
func (m *move) all(runtimes ...*runtimes.Containerd) {
	m.Helper()
	var front []string
	for _, c := range runtimes {
		var want []string
		for _, p := range m.running {
			if p.Containerd == c {
				want = append(want, p.sandbox)
			}
		}
		slices.Sort(want)
		itself, err := c.Runtime(m.Context())
		require.NoError(m, err)
		assert.Equal(m, want, m.sandboxes(itself), "the pods of %s", c.Name)
		require.NoError(m, itself.Close(m.Context()))
		front = append(front, want...)
	}
	slices.Sort(front)
	assert.Equal(m, front, m.sandboxes(m.runtime))
	for name, p := range m.running {
		out, _, err := m.runtime.ExecSync(m.Context(), p.container, []string{"app", "print", name}, 20*time.Second)
		require.NoError(m, err, name)
		assert.Equal(m, name+"\n", string(out))
	}
}

// has asserts which runtimes have an image.
func (m *move) has(image string, want ...*runtimes.Containerd) {
	m.Helper()
	for _, c := range []*runtimes.Containerd{m.old, m.new} {
		images, err := c.Images(m.Context())
		require.NoError(m, err)
		status, err := images.ImageStatus(m.Context(), &runtimeapi.ImageSpec{Image: image}, false)
		require.NoError(m, err)
		assert.Equal(m, slices.Contains(want, c), status.Image != nil, "%s on %s", image, c.Name)
		require.NoError(m, images.Close(m.Context()))
	}
}

// docs/migration.md, "From one containerd to another, on the node as it is", step by step, from an old containerd to a
// new one; both are real.
func TestOneContainerdIsDrainedIntoAnother(t *testing.T) {
	const origin = "registry.test" // an address with a port cannot follow new.example/
	reg := testbed.NewRegistry(t)
	mirrors := map[string]string{origin: reg.Addr}
	m := &move{TB: t, program: criproxy(t), running: map[string]*running{}}
	m.old = testbed.NewContainerd(t, reg, runtimes.Config{Version: "1.7", Mirrors: mirrors})
	m.new = testbed.NewContainerd(t, reg, runtimes.Config{Version: "2.4", Mirrors: mirrors})
	app, app2, other := origin+"/testbed/app:1", origin+"/testbed/app:2", origin+"/testbed/other:1"

	// Pods from before criproxy.
	m.runtime, m.images = kubelet(t, m.old.Socket())
	m.run("before", app, "", m.old)

	// Step 2: kubelet uses criproxy, with all pods still on the old runtime.
	both := fmt.Sprintf("ids: native\nbackends:\n- address: %s\n- name: new.example\n  address: %s\n  handlers: {runc: runc}\n", m.old.Socket(), m.new.Socket())
	m.proxy = testbed.NewProxy(t, both)
	require.NoError(t, waitForAll(t.Context(), m.proxy))
	m.runtime, m.images = kubelet(t, m.proxy.Socket())
	m.run("early", app, "", m.old)
	m.all(m.old, m.new)
	m.has(app, m.old)

	// Step 3.
	m.write("newPodsTo: new.example\n" + both)
	m.run("fresh", app2, "", m.new)
	m.has(app2, m.new)
	m.run("classy", app, "runc", m.new) // a handler that the new runtime takes over
	m.has(app, m.old, m.new)
	m.run("unmapped", app, "alt", m.old) // and one without a mapping
	m.restart(m.running["early"], other)
	m.has(other, m.old)
	m.all(m.old, m.new)
	assert.Equal(t, map[string]int{"primary": 3, "new.example": 2}, m.status())
	version, err := m.runtime.Version(t.Context(), "")
	require.NoError(t, err)
	assert.Contains(t, version.RuntimeVersion, "1.7.", "kubelet sees the primary until it goes")

	// A pod whose sandbox has ended gets its next sandbox on the new runtime. kubelet removes the old sandbox.
	again := m.running["before"]
	m.remove("before")
	config := proto.CloneOf(again.config)
	config.Metadata.Attempt = 1
	sandbox, err := m.runtime.RunPodSandbox(t.Context(), config, "")
	require.NoError(t, err)
	m.running["again"] = &running{Containerd: m.new, config: config, sandbox: sandbox}
	m.restart(m.running["again"], app)
	m.all(m.old, m.new)

	// The way back, and forth again.
	m.write(both)
	m.run("back", app, "", m.old)
	m.write("newPodsTo: new.example\n" + both)
	m.all(m.old, m.new)

	// Step 4.
	for name, p := range maps.Clone(m.running) {
		if p.Containerd == m.old {
			m.remove(name)
			m.run(name, app, "", m.new)
		}
	}
	m.all(m.old, m.new)
	assert.Equal(t, map[string]int{"primary": 0, "new.example": 6}, m.status())

	// Step 5: the new runtime is the only backend, and the old one is stopped.
	m.write(fmt.Sprintf("ids: native\nbackends:\n- address: %s\n", m.new.Socket()))
	require.NoError(t, m.old.Terminate(t.Context()))
	m.all(m.new)
	assert.Equal(t, map[string]int{"primary": 6}, m.status())
	version, err = m.runtime.Version(t.Context(), "")
	require.NoError(t, err)
	assert.Contains(t, version.RuntimeVersion, "2.4.")
	status, err := m.images.ImageStatus(t.Context(), &runtimeapi.ImageSpec{Image: app2, Annotations: m.running["fresh"].config.Annotations}, false)
	require.NoError(t, err)
	assert.Equal(t, []string{app2}, status.Image.GetRepoTags(), "by the name in the pod, without a prefix")
	m.restart(m.running["fresh"], app2)
	m.run("last", other, "", m.new)
	m.all(m.new)
	for name := range maps.Clone(m.running) {
		m.remove(name)
	}
	m.all(m.new)
}
