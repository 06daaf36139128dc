package why_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/criproxy/criproxy/hook/plugin"
	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/proxy"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// A fault is made by run, and criproxy why must say a sentence about it.
type fault struct {
	name string
	says string // empty if it says nothing
	run  func(t *testing.T)

	whole bool // it began with the node
}

func (n *node) try(t *testing.T, faults []fault) {
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			since := time.Now()
			if f.whole {
				since = n.began
			}
			n.say("%s", f.name)
			f.run(t)
			n.save(t, f.name, since)
			found := n.why(t, since)
			assert.True(t, f.says == "" || slices.ContainsFunc(found, func(one finding) bool { return strings.Contains(one.sentence(), f.says) }), "%q is not in %v", f.says, found)
		})
	}
}

// Faults of single pods: what a runtime or a plugin of criproxy refuses, and what takes too long.
func TestWhyNamesFaultsOfPods(t *testing.T) {
	folder := t.TempDir()
	n := newNode(t, setup{criproxy: "listBudget: 40s\ngoneAfter: 60s\nhooks: " + folder + "\n", kubelet: "runtimeRequestTimeout: 4s\ncrashLoopBackOff: {maxContainerRestartPeriod: 1s}\n"})
	n.serve(t, plugin.Plugin{Name: "policy", Folder: folder, Socket: folder + "/policy.sock", Fail: true, Timeout: 10 * time.Second,
		PreRunPodSandbox: func(_ context.Context, p *plugin.Pod) (*plugin.PodAnswer, error) {
			if strings.HasPrefix(p.GetPodMeta().GetName(), "refused-") {
				return nil, errors.New("pods of this team must have a budget")
			}
			return nil, nil
		},
		PreCreateContainer: func(ctx context.Context, c *plugin.Container) (*plugin.ContainerAnswer, error) {
			if strings.HasPrefix(c.GetPodMeta().GetName(), "delayed-") {
				select {
				case <-time.After(1500 * time.Millisecond):
				case <-ctx.Done():
				}
			}
			return nil, nil
		}})
	n.run(t, pod("web", "tick"))
	n.try(t, []fault{
		{name: "container-reserved", says: " too slow for the container of testbed/heavy-", run: func(t *testing.T) {
			n.pushManyFiles(t)
			p := pod("heavy", "tick")
			p.Spec.Containers[0].Image = registry + "/testbed/heavy:1"
			require.NoError(t, n.kubelet.AddManifest(p))
			n.await(t, 3*time.Minute, "failed to reserve container name")
			time.Sleep(10 * time.Second)
			require.NoError(t, n.kubelet.RemoveManifest("heavy"))
		}},
		{name: "no-program", says: " not start on primary: StartContainer failed ", run: func(t *testing.T) {
			p := pod("empty")
			p.Spec.Containers[0].Command = []string{"/bin/nothing"}
			require.NoError(t, n.kubelet.AddManifest(p))
			time.Sleep(20 * time.Second)
			require.NoError(t, n.kubelet.RemoveManifest("empty"))
			time.Sleep(3 * time.Second)
		}},
		{name: "plugin-refuses", says: "a plugin of criproxy refuses it", run: func(t *testing.T) {
			require.NoError(t, n.kubelet.AddManifest(pod("refused", "tick")))
			time.Sleep(30 * time.Second)
			require.NoError(t, n.kubelet.RemoveManifest("refused"))
		}},
		{name: "plugin-slow", says: "plugins of criproxy take this time", run: func(t *testing.T) {
			require.NoError(t, n.kubelet.AddManifest(pod("delayed", "tick")))
			time.Sleep(20 * time.Second)
			require.NoError(t, n.kubelet.RemoveManifest("delayed"))
			time.Sleep(3 * time.Second)
		}},
		{name: "pull-fails", says: "the registry has no such image or tag", run: func(t *testing.T) {
			guarded, err := runtimes.StartRegistry(runtimes.RegistryConfig{Username: "lab", Password: "secret"})
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, guarded.Close()) })
			images := map[string]string{"absent": registry + "/testbed/app:none", "closed": "127.0.0.1:9/team/app:1", "unnamed": "registry.invalid/team/app:1", "private": guarded.Addr + "/team/app:1"}
			for name, image := range images {
				p := pod(name, "tick")
				p.Spec.Containers[0].Image = image
				require.NoError(t, n.kubelet.AddManifest(p))
			}
			time.Sleep(45 * time.Second)
			for name := range images {
				require.NoError(t, n.kubelet.RemoveManifest(name))
			}
			time.Sleep(3 * time.Second)
		}},
		{name: "probes-busy", says: "the node is busy or ", run: func(t *testing.T) {
			p := pod("many", "tick")
			one := p.Spec.Containers[0]
			one.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"app", "sleep", "0s"}}}, PeriodSeconds: 1, TimeoutSeconds: 1}
			p.Spec.Containers = nil
			for i := range 12 {
				c := one
				c.Name = fmt.Sprintf("app%d", i)
				p.Spec.Containers = append(p.Spec.Containers, c)
			}
			n.run(t, p)
			busy, idle := context.WithTimeout(t.Context(), 25*time.Second)
			defer idle()
			for range 100 {
				go func() {
					for busy.Err() == nil {
					}
				}()
			}
			<-busy.Done()
			require.NoError(t, n.kubelet.RemoveManifest("many"))
			time.Sleep(8 * time.Second)
		}},
		{name: "network-not-ready", says: "primary reported NetworkReady=false: ", run: func(t *testing.T) {
			confs, err := filepath.Glob(filepath.Join(n.runtime.Dir, "cni", "net.d", "*"))
			require.NoError(t, err)
			require.Len(t, confs, 1)
			text, err := os.ReadFile(confs[0])
			require.NoError(t, err)
			require.NoError(t, os.Remove(confs[0]))
			time.Sleep(3 * time.Second)
			require.NoError(t, n.kubelet.AddManifest(pod("lonely", "tick")))
			time.Sleep(15 * time.Second)
			require.NoError(t, n.kubelet.RemoveManifest("lonely"))
			require.NoError(t, os.WriteFile(confs[0], text, 0o644)) // containerd does not notice a file that was moved there
			time.Sleep(12 * time.Second)
		}},
		{name: "not-removed", says: " be removed from primary: RemovePodSandbox was tried ", run: func(t *testing.T) {
			n.run(t, pod("kept", "tick"))
			held := filepath.Join(n.sandboxDir(t, "kept"), "held")
			require.NoError(t, os.WriteFile(held, nil, 0o600))
			immutable(t, held)
			require.NoError(t, n.kubelet.RemoveManifest("kept"))
			time.Sleep(230 * time.Second)
		}},
	})
}

// await waits until the last calls have a text.
func (n *node) await(t *testing.T, atMost time.Duration, text string) {
	t.Helper()
	require.Eventually(t, func() bool {
		out, err := n.dump(t.Context())
		return err == nil && bytes.Contains(out, []byte(text))
	}, atMost, 2*time.Second)
}

// serve runs a plugin until the test ends.
func (n *node) serve(t *testing.T, p plugin.Plugin) {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		assert.NoError(t, <-ended)
	})
	require.Eventually(t, func() bool {
		out, err := proxy.Ask(t.Context(), n.proxy.Admin(), "/hooks")
		return err == nil && strings.Contains(string(out), `"ready"`)
	}, 30*time.Second, 100*time.Millisecond)
}

// pushManyFiles pushes an image whose volume has so many files that a runtime takes long to copy them for each container.
func (n *node) pushManyFiles(t *testing.T) {
	var files bytes.Buffer
	w := tar.NewWriter(&files)
	require.NoError(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "data/", Mode: 0o755}))
	for i := range 150_000 {
		require.NoError(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("data/%d", i), Mode: 0o644}))
	}
	require.NoError(t, w.Close())
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files.Bytes())), nil })
	require.NoError(t, err)
	image, err := mutate.AppendLayers(n.pushed(t, "testbed/app:1"), layer)
	require.NoError(t, err)
	file, err := image.ConfigFile()
	require.NoError(t, err)
	file = file.DeepCopy()
	file.Config.Volumes = map[string]struct{}{"/data": {}}
	image, err = mutate.ConfigFile(image, file)
	require.NoError(t, err)
	require.NoError(t, n.registry.Push("testbed/heavy:1", v1.Image(image)))
}

// sandboxDir returns the folder in which containerd keeps what belongs to the sandbox of a pod.
func (n *node) sandboxDir(t *testing.T, pod string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(n.runtime.Dir, "root", "*", "sandboxes", n.sandbox(t, pod)))
	require.NoError(t, err)
	require.NotEmpty(t, found)
	return found[0]
}

// immutable makes a file that nobody can remove until the test ends.
func immutable(t *testing.T, path string) {
	t.Helper()
	require.NoError(t, setFlags(path, immutableFlag))
	t.Cleanup(func() { require.NoError(t, setFlags(path, 0)) })
}

// What happens to a whole runtime: it is killed, it hangs, it is upgraded, and another takes its place.
func TestWhyNamesFaultsOfARuntime(t *testing.T) {
	n := newNode(t, setup{version: "1.7", direct: true})
	n.run(t, pod("web", "tick"), pod("idle"))
	another := func(t *testing.T, name string) string {
		return testbed.NewContainerd(t, n.registry, runtimes.Config{Name: name, Mirrors: n.runtime.Mirrors}).Socket()
	}
	parent := t // the runtime of the last fault must outlive it
	n.try(t, []fault{
		{name: "runtime-killed", says: "primary was gone once", run: func(t *testing.T) {
			require.NoError(t, n.runtime.Kill())
			time.Sleep(6 * time.Second)
			require.NoError(t, n.runtime.Start(t.Context()))
			time.Sleep(8 * time.Second)
		}},
		{name: "runtime-hung", says: " answered nothing for ", run: func(t *testing.T) {
			require.NoError(t, n.runtime.Freeze())
			time.Sleep(25 * time.Second)
			require.NoError(t, n.runtime.Thaw())
			time.Sleep(8 * time.Second)
		}},
		{name: "runtime-upgraded", says: "primary was replaced: it is containerd ", run: func(t *testing.T) {
			time.Sleep(12 * time.Second) // kubelet asks for the version
			require.NoError(t, n.runtime.Upgrade(t.Context(), "2.4"))
			time.Sleep(15 * time.Second)
		}},
		{name: "runtime-swapped", says: "primary is now at ", run: func(t *testing.T) {
			require.NoError(t, n.proxy.Configure(n.yaml+another(t, "other")+"\n"))
			time.Sleep(25 * time.Second)
			require.NoError(t, n.proxy.Configure(n.yaml+n.runtime.Socket()+"\n"))
			time.Sleep(15 * time.Second)
		}},
		{name: "runtime-moved", says: "criproxy started with this configuration", run: func(t *testing.T) {
			require.NoError(t, os.MkdirAll(filepath.Join(n.proxy.Dir, "state"), 0o700)) // as systemd does, for the addresses of before
			for _, socket := range []string{n.runtime.Socket(), another(parent, "third")} {
				require.NoError(t, n.proxy.Terminate(t.Context()))
				require.NoError(t, n.proxy.Configure(n.yaml+socket+"\n"))
				require.NoError(t, n.proxy.Start(t.Context()))
			}
			time.Sleep(25 * time.Second)
		}},
	})
}

// What happens to kubelet, to criproxy and to what it is configured with; and a call that no other rule is about fails.
func TestWhyNamesFaultsOfKubeletAndCriproxy(t *testing.T) {
	var broken atomic.Bool
	full := func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if broken.Load() && strings.HasSuffix(info.FullMethod, "/ImageFsInfo") {
			return status.Error(codes.Internal, "failed to get image fs info: the database is locked")
		}
		return handler(srv, stream)
	}
	folder := t.TempDir()
	n := newNode(t, setup{second: true, criproxy: "hooks: " + folder + "\n", relay: []grpc.StreamServerInterceptor{full}})
	config, err := os.ReadFile(filepath.Join(n.proxy.Dir, "criproxy.yaml"))
	require.NoError(t, err)
	n.run(t, pod("web", "tick"))
	n.try(t, []fault{
		{name: "no-disk-figures", says: "ImageFsInfo fails on primary, ", run: func(t *testing.T) {
			broken.Store(true)
			time.Sleep(70 * time.Second)
			broken.Store(false)
		}},
		{name: "kubelet-loop", says: "kubelet was started anew ", run: func(t *testing.T) {
			for range 4 {
				require.NoError(t, n.kubelet.Kill())
				time.Sleep(5 * time.Second)
				require.NoError(t, n.kubelet.Start(t.Context()))
			}
			time.Sleep(5 * time.Second)
		}},
		{name: "criproxy-killed", says: "it crashed or was killed, and clients could not call any runtime", run: func(t *testing.T) {
			time.Sleep(5 * time.Second)
			require.NoError(t, n.proxy.Kill())
			time.Sleep(15 * time.Second)
			require.NoError(t, n.proxy.Start(t.Context()))
			time.Sleep(8 * time.Second)
		}},
		{name: "config-refused", says: "criproxy refused a new configuration at ", run: func(t *testing.T) {
			require.NoError(t, n.proxy.Configure(string(config)+"newPodsTo: nowhere\n"))
			time.Sleep(10 * time.Second)
		}},
		{name: "runtime-removed", says: old + " is no longer in the configuration since ", run: func(t *testing.T) {
			require.NoError(t, n.proxy.Configure(string(config)))
			n.run(t, onSecond(pod("vm", "tick"), "testbed/app:1"))
			require.NoError(t, n.proxy.Configure(strings.Split(string(config), "- name: "+old)[0]))
			time.Sleep(15 * time.Second)
		}},
		{name: "plugin-down", says: "plugin policy.json is down since ", run: func(t *testing.T) {
			require.NoError(t, n.proxy.Configure(string(config)))
			ctx, stop := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			p := plugin.Plugin{Name: "policy", Folder: folder, Socket: folder + "/policy.sock", PreRunPodSandbox: func(context.Context, *plugin.Pod) (*plugin.PodAnswer, error) { return nil, nil }}
			go func() { ended <- p.Run(ctx) }()
			time.Sleep(5 * time.Second)
			file, err := os.ReadFile(filepath.Join(folder, "policy.json"))
			require.NoError(t, err)
			stop()
			require.NoError(t, <-ended)
			require.NoError(t, os.WriteFile(filepath.Join(folder, "policy.json"), file, 0o644)) // as if it had been killed
			time.Sleep(15 * time.Second)
		}},
	})
}

// What only happens to pods that an API server knows.
func TestWhyNamesFaultsOfPodsOfACluster(t *testing.T) {
	n := newNode(t, setup{api: true})
	n.plane.AwaitOutput(t, "True", "get", "node", "-o", `jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}`)
	n.plane.AwaitOutput(t, "", "get", "node", "-o", "jsonpath={.items[*].spec.taints}")
	n.try(t, []fault{
		{name: "no-handler", says: "the runtime has no such RuntimeClass handler", run: func(t *testing.T) {
			n.plane.Apply(t, "{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: sandboxed}, handler: kata}")
			n.plane.Apply(t, fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: vault}, spec: {runtimeClassName: sandboxed, terminationGracePeriodSeconds: 1, containers: [{name: app, image: %q}]}}", image))
			n.await(t, 2*time.Minute, "RunPodSandbox")
			time.Sleep(30 * time.Second)
			n.plane.Kubectl(t, "delete", "pod", "vault")
			time.Sleep(3 * time.Second)
		}},
	})
}

// What cannot work as it is configured.
func TestWhyNamesWrongWiring(t *testing.T) {
	events := func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if strings.HasSuffix(info.FullMethod, "/GetContainerEvents") { // as an older containerd answers
			return status.Error(codes.Unimplemented, "unknown method GetContainerEvents for service runtime.v1.RuntimeService")
		}
		return handler(srv, stream)
	}
	n := newNode(t, setup{version: "1.7", kubelet: "featureGates: {EventedPLEG: true}\n", relay: []grpc.StreamServerInterceptor{events}, toml: `
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = true
`})
	n.try(t, []fault{
		{name: "no-events", says: "kubelet has given up evented PLEG", run: func(t *testing.T) { time.Sleep(10 * time.Second) }, whole: true},
		{name: "cgroup-drivers", says: "the cgroup drivers differ", run: func(t *testing.T) {
			require.NoError(t, n.kubelet.AddManifest(pod("web", "tick")))
			time.Sleep(30 * time.Second)
			require.NoError(t, n.kubelet.RemoveManifest("web"))
		}},
		{name: "no-cri", says: "the runtime does not serve this version of CRI", run: func(t *testing.T) {
			require.NoError(t, n.runtime.Terminate(t.Context()))
			config := filepath.Join(n.runtime.Dir, "config.toml")
			text, err := os.ReadFile(config)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(config, append([]byte("disabled_plugins = ['io.containerd.grpc.v1.cri']\n"), text...), 0o644))
			bounded, stop := context.WithTimeout(t.Context(), 15*time.Second)
			defer stop()
			assert.Error(t, n.runtime.Start(bounded), "it does not serve CRI")
			time.Sleep(15 * time.Second)
			t.Cleanup(func() { // before the pods are removed
				require.NoError(t, os.WriteFile(config, text, 0o644))
				require.NoError(t, n.runtime.Terminate(context.Background()))
				require.NoError(t, n.runtime.Start(context.Background()))
			})
		}},
	})
}
