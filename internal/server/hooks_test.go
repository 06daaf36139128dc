package server

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/hook/plugin"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/observe/show"
	"github.com/criproxy/criproxy/internal/plugins"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// plug starts a plugin of the node's proxy, and returns when it can be asked. It
// ends with the test, or when it is stopped.
func (n *node) plug(p plugin.Plugin) (unplug func()) {
	n.Helper()
	p.Timeout = testkit.Patience // what happens after a plugin's own 2 s is tested in internal/plugins
	p.Folder, p.Socket = n.cfg.Hooks, filepath.Join(filepath.Dir(n.cfg.Listen), p.Name+".sock")
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	unplug = sync.OnceFunc(func() {
		cancel()
		assert.NoError(n, <-ended)
	})
	n.Cleanup(unplug)
	testkit.Eventually(n, "plugin "+p.Name+" is ready", func() bool { return n.plugin(p.Name).State == "ready" })
	return unplug
}

func (n *node) plugin(name string) plugins.PluginState {
	for _, p := range n.proxy.plugins().Plugins {
		if p.Name == name+".json" {
			return p
		}
	}
	return plugins.PluginState{}
}

func TestPluginsAreAskedAboutEachRuntimeByFrontNames(t *testing.T) {
	inBothModes(t, func(t *testing.T, mode func(*config.Config)) {
		n := newNode(t, mode)
		var mu sync.Mutex
		calls := map[string][]plugin.Call{}
		asked := func(ctx context.Context, pod string) {
			mu.Lock()
			defer mu.Unlock()
			calls[pod] = append(calls[pod], plugin.CallOf(ctx))
		}
		n.plug(plugin.Plugin{Name: "tier",
			PreCreateContainer: func(ctx context.Context, c *plugin.Container) (*plugin.ContainerAnswer, error) {
				asked(ctx, c.GetPodMeta().GetName())
				a := plugin.Echo(c)
				a.ContainerAnnotations["tier"] = c.GetPodLabels()["app"]
				a.ContainerResources.CpuShares = 77
				return a, nil
			},
			PostStartContainer: func(ctx context.Context, c *plugin.Container) (*plugin.ContainerAnswer, error) {
				asked(ctx, c.GetPodMeta().GetName())
				assert.Equal(t, strings.TrimPrefix(plugin.CallOf(ctx).ID, "beta.io__"), c.GetContainerMeta().GetId(), "the runtime's own id")
				assert.Equal(t, int64(77), c.GetContainerResources().GetCpuShares(), "it gets what was made of it")
				return nil, nil
			},
		})
		for i, m := range n.runtimes {
			name := []string{"web", "vm"}[i]
			p := n.run(i, name, 1)
			made := m.Calls("CreateContainer")[0].Request.(*runtimeapi.CreateContainerRequest)
			assert.Equal(t, name, made.GetConfig().GetAnnotations()["tier"])
			assert.EqualValues(t, 77, made.GetConfig().GetLinux().GetResources().GetCpuShares())
			mu.Lock()
			assert.Equal(t, []plugin.Call{
				{Point: "PreCreateContainer", PodID: p.sandbox},
				{Point: "PostStartContainer", ID: p.containers[0], PodID: p.sandbox, Code: "OK"},
			}, calls[name])
			mu.Unlock()
		}
	})
}

// At each start events said that a dead plugin answers, and for 35 s they did not say that one had died or was back.
func TestTheEventsOfAPluginAreItsConditions(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	became := func(what string) (c capture.Change) {
		testkit.Eventually(t, what, func() bool {
			for _, one := range n.proxy.changes.Latest() {
				if one.Plugin != "" {
					c = one
				}
			}
			return c.What == what
		})
		return c
	}
	socket := filepath.Join(filepath.Dir(n.cfg.Listen), "p.sock")
	require.NoError(t, os.MkdirAll(n.cfg.Hooks, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(n.cfg.Hooks, "p.json"), []byte(`{"remote-endpoint": "`+socket+`", "runtime-hooks": ["PreRunPodSandbox"]}`), 0o644))
	down := became(capture.PluginDown)
	assert.Equal(t, n.plugin("p").Error, down.Why)
	assert.NotEmpty(t, testkit.LogLines("Plugin is down", down.Why))
	n.stop()
	n.start()
	testkit.Eventually(t, "the next process knows", func() bool {
		return len(testkit.LogLines("Plugin is still down, as before this process", down.Why, down.Time.Local().Format(time.DateTime))) > 0
	})
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	testkit.Eventually(t, "status has the reason of the event, and the one of now", func() bool {
		return n.plugin("p").Error == down.Why+"; now: dial unix "+socket+": connect: connection refused"
	})
	require.NoError(t, os.Remove(socket))
	for _, one := range n.proxy.changes.Latest() {
		assert.Empty(t, one.Plugin, "it goes on")
	}

	l, err = net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	require.NoError(t, err)
	s, ended := grpc.NewServer(), make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	up := became(capture.PluginReady)
	assert.Equal(t, "ready", n.plugin("p").State)
	assert.True(t, down.Time.Equal(up.Since), "%s, and not %s", up.Since, down.Time)
	s.Stop()
	require.NoError(t, <-ended)
	down = became(capture.PluginDown)
	assert.Contains(t, down.String(), "plugin p.json is down: dial unix "+socket)

	require.NoError(t, os.Remove(filepath.Join(n.cfg.Hooks, "p.json")))
	removed := became(capture.Removed) // the history said that it is down
	assert.Contains(t, removed.String(), "plugin p.json is removed: its file is gone (down for ")
}

// Through KoordRuntimeProxy a client of the older version got no hooks.
func TestAClientOfAnOlderVersionGetsTheSameHooks(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	n.plug(plugin.Plugin{Name: "tier", Fail: true, PreRunPodSandbox: func(_ context.Context, p *plugin.Pod) (*plugin.PodAnswer, error) {
		a := plugin.EchoPod(p)
		a.Annotations["tier"] = "low"
		return a, nil
	}})
	require.NoError(t, n.cc.Invoke(n.ctx(), "/runtime.v1alpha2.RuntimeService/RunPodSandbox",
		&runtimeapi.RunPodSandboxRequest{Config: testkit.PodConfig("web")}, &runtimeapi.RunPodSandboxResponse{}))
	assert.Equal(t, "low", n.runtimes[0].Pods()[0].GetAnnotations()["tier"])
}

// Pods from before the start of the proxy are looked up, on every runtime and with both forms of
// ids.
func TestAfterARestartPluginsGetWhatWasThereBefore(t *testing.T) {
	inBothModes(t, func(t *testing.T, mode func(*config.Config)) {
		n := newNode(t, mode)
		p := n.run(1, "vm", 1)
		n.known()
		n.stop()
		n.start()
		n.isUp(1)
		got := make(chan *plugin.Container, 10)
		n.plug(plugin.Plugin{Name: "look", Fail: true,
			PreUpdateContainerResources: func(_ context.Context, c *plugin.Container) (*plugin.ContainerAnswer, error) {
				got <- proto.CloneOf(c)
				return nil, nil
			}})
		_, err := n.UpdateContainerResources(n.ctx(), &runtimeapi.UpdateContainerResourcesRequest{ContainerId: p.containers[0], Linux: &runtimeapi.LinuxContainerResources{CpuShares: 5}})
		require.NoError(t, err)
		c := <-got
		assert.Equal(t, "vm", c.GetPodMeta().GetName())
		assert.Equal(t, "vm", c.GetPodLabels()["app"])
		assert.Equal(t, strings.TrimPrefix(p.containers[0], "beta.io__"), c.GetContainerMeta().GetId(), "the runtime's own id")
		assert.EqualValues(t, 5, c.GetContainerResources().GetCpuShares())
	})
}

// Plugins outlive reloads: what they know of the only runtime stays, and they are asked about the pods of one that joins it.
func TestPluginsKnowAllPodsWhenARuntimeJoinsTheOnlyOne(t *testing.T) {
	inBothModes(t, func(t *testing.T, mode func(*config.Config)) {
		n := newNode(t, mode)
		n.isUp(1)
		theirs := n.run(1, "theirs", 1)
		both, alone := n.cfg, *n.cfg
		alone.Backends = alone.Backends[:1]
		n.stop()
		n.cfg = &alone
		n.start()
		got := make(chan *plugin.Container, 10)
		share := func(_ context.Context, c *plugin.Container) (*plugin.ContainerAnswer, error) {
			got <- proto.CloneOf(c)
			a := plugin.Echo(c)
			a.ContainerResources.CpuShares = 77
			return a, nil
		}
		n.plug(plugin.Plugin{Name: "shares", Fail: true, PreCreateContainer: share, PreUpdateContainerResources: share})
		<-n.proxy.Serving()
		ours := n.run(0, "ours", 1)
		require.Len(t, got, 1)
		assert.Equal(t, "ours", (<-got).GetPodMeta().GetName())
		n.cfg = both
		require.NoError(t, reload(n.proxy, both))
		n.isUp(1)
		for _, p := range []*pod{ours, theirs} {
			_, err := n.UpdateContainerResources(n.ctx(), &runtimeapi.UpdateContainerResourcesRequest{ContainerId: p.containers[0], Linux: &runtimeapi.LinuxContainerResources{CpusetCpus: "0"}})
			require.NoError(t, err)
			require.Len(t, got, 1)
			c := <-got
			assert.Equal(t, p.config.GetMetadata().GetName(), c.GetPodMeta().GetName())
			assert.Zero(t, c.GetContainerResources().GetCpuShares(), "as its client asked, without the change of the plugin")
		}
	})
}

func TestCriproxyHooksShowsThePlugins(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	n.plug(plugin.Plugin{Name: "shares",
		PreCreateContainer: func(_ context.Context, c *plugin.Container) (*plugin.ContainerAnswer, error) {
			a := plugin.Echo(c)
			a.ContainerResources.CpuShares = 77
			return a, nil
		},
		PreRunPodSandbox: func(context.Context, *plugin.Pod) (*plugin.PodAnswer, error) {
			return nil, status.Error(codes.Internal, "out of order")
		},
	})
	n.run(0, "web", 1)
	path := filepath.Join(testkit.SocketDir(t), "a.sock")
	served := admin.New(n.proxy.served(), func(*http.ServeMux) {}, http.NotFound, http.NotFound)
	var err error
	served.Listener, err = net.Listen("unix", path)
	require.NoError(t, err)
	t.Cleanup(served.Start())
	var out bytes.Buffer
	require.NoError(t, show.Hooks(t.Context(), show.Query{Path: path, Screen: show.NewScreen(&out)}))
	assert.Regexp(t, `^shares\.json  ready  /.*/shares\.sock  policy Ignore, timeout 1m0s\n`+
		`  POINT +ASKED +FAILED +LATE +REFUSED +CHANGES +MEDIAN +P99\n`+
		`  PreCreateContainer +1 +0 +0 +0 +1 +\S+ +\S+\n`+
		`  PreRunPodSandbox +1 +1 +0 +0 +0 +\S+ +\S+\n`+
		`  last error at PreRunPodSandbox, \S+: says no: out of order \(Internal\)\n\n`+
		`criproxy knows 1 pod and 1 container\. Between plugins: 0 conflicts\.\n$`, out.String())
	out.Reset()
	require.NoError(t, show.Hooks(t.Context(), show.Query{Path: path, Format: show.JSON, Screen: show.NewScreen(&out)}))
	assert.Contains(t, out.String(), `"changed":{"container_resources.cpu_shares":1}`)
}

func TestACaptureSaysWhichPluginChangedWhat(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	for _, name := range []string{"one", "two"} {
		n.plug(plugin.Plugin{Name: name, PreRunPodSandbox: func(_ context.Context, p *plugin.Pod) (*plugin.PodAnswer, error) {
			a := plugin.EchoPod(p)
			a.Annotations[name] = "ä"
			return a, nil
		}})
	}
	n.run(0, "web", 0)
	f := n.proxy.record.Follow()
	var ev capture.Event
	var legs int
	for f.TryNext(&ev) {
		if ev.Method != "/runtime.v1.RuntimeService/RunPodSandbox" || ev.Kind != capture.Start {
			continue
		}
		legs++
		if ev.Leg == 0 {
			assert.Empty(t, ev.Metadata["criproxy-changed-by"])
		} else {
			assert.Equal(t, []string{`one.json annotations["one"]: "" -> "ä"`, `two.json annotations["two"]: "" -> "ä"`}, ev.Metadata["criproxy-changed-by"])
		}
	}
	assert.Equal(t, 2, legs)
	assert.Empty(t, n.runtimes[0].Calls("RunPodSandbox")[0].Metadata["criproxy-changed-by"], "the runtime does not get it")
}
