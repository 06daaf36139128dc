package integration

import (
	"fmt"
	"os"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// withoutV1 refuses calls of v1, like a runtime without v1.
func withoutV1(method string) error {
	if strings.HasPrefix(method, "/"+v1+".") {
		return status.Error(codes.Unimplemented, "unknown service "+strings.TrimPrefix(path.Dir(method), "/"))
	}
	return nil
}

// The tests that run "each" show that a client of v1alpha2 can do everything on a runtime with only v1. This test shows
// the reverse, and both at once: one runtime has only v1alpha2, the other only v1.
func TestEveryClientWorksWithUnequalRuntimeVersions(t *testing.T) {
	b := start(t)
	for name, order := range map[string][]*side{"the primary is older": {b.one, b.two}, "the other is older": {b.two, b.one}} {
		t.Run(name, func(t *testing.T) {
			old := newRelay(t, b.one.Socket(), withoutV1)
			// The same runtimes in another arrangement.
			arranged := &bench{reg: b.reg}
			var sockets []string
			for i, s := range order {
				s := &side{Containerd: s.Containerd, client: s.client, reg: s.reg, prefix: []string{"", second}[i]}
				if s.Containerd == b.one.Containerd {
					arranged.one = s
					sockets = append(sockets, old.socket)
				} else {
					arranged.two = s
					sockets = append(sockets, s.Socket())
				}
			}
			p := inFrontOf(t, sockets...)
			for _, s := range arranged.sides() {
				t.Run(s.Containerd.Version, func(t *testing.T) {
					t.Run("kubelet", func(t *testing.T) { life(t, arranged, s, p.Socket()) })
					for _, version := range []string{v1, v1alpha2} {
						t.Run(version, func(t *testing.T) {
							c := dial(t, p.Socket(), version)
							has := run(t, c, s, "versions")
							id := has.start(t)
							assert.Equal(t, "testbed/app:1\n", has.exec(t, id, "app", "file", "/etc/image"))
							resp, err := c.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
							require.NoError(t, err)
							assert.Equal(t, []string{id}, ids(resp.Containers, (*runtimeapi.Container).GetId))
							v, err := c.Version(t.Context(), &runtimeapi.VersionRequest{})
							require.NoError(t, err)
							assert.Equal(t, "containerd", v.RuntimeName)
						})
					}
				})
			}
			old.mu.Lock()
			defer old.mu.Unlock()
			for _, call := range old.calls {
				assert.True(t, strings.HasPrefix(call.method, "/"+v1alpha2+".") || path.Base(call.method) == "Version",
					"%s reached a runtime that does not have it", call.method)
			}
			assert.Greater(t, len(old.calls), 30)
		})
	}
}

// hostNamespaces is a client's NamespaceOption in v1alpha1, whose first three fields were bool. Its true reads CONTAINER
// in v1.
func hostNamespaces(network, pid, ipc bool) *runtimeapi.NamespaceOption {
	bit := map[bool]runtimeapi.NamespaceMode{true: 1}
	return &runtimeapi.NamespaceOption{Network: bit[network], Pid: bit[pid], Ipc: bit[ipc]}
}

// If forwarded unchanged, host_network=true would mean another mode, like all other values.
func TestNamespacesOfV1alpha1ArriveRight(t *testing.T) {
	b := start(t)
	c := dial(t, b.proxy.Socket(), v1alpha1)
	for _, s := range b.sides() {
		for _, host := range []struct{ network, pid, ipc bool }{
			{}, {network: true}, {pid: true}, {network: true, pid: true, ipc: true},
		} {
			t.Run(fmt.Sprintf("%s %+v", s.Containerd.Version, host), func(t *testing.T) {
				config := s.choose(s.PodConfig("namespaces"))
				config.Linux.SecurityContext.NamespaceOptions = hostNamespaces(host.network, host.pid, host.ipc)
				if host.network {
					config.Hostname = ""
				}
				p := runWith(t, c, s, config, "")
				container := p.container()
				container.Linux.SecurityContext.NamespaceOptions = hostNamespaces(host.network, host.pid, host.ipc)
				id := p.create(t, container)
				_, err := c.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id})
				require.NoError(t, err)

				sandbox, app := sandboxPidOf(t, s, p.back(t)), madeOf(t, s, s.bare(t, id)).Pid
				for kind, shared := range map[string]bool{"net": host.network, "pid": host.pid, "ipc": host.ipc} {
					ours, its, apps := namespace(t, os.Getpid(), kind), namespace(t, sandbox, kind), namespace(t, app, kind)
					if shared {
						assert.Equal(t, ours, its, kind)
						assert.Equal(t, ours, apps, kind)
						continue
					}
					assert.NotEqual(t, ours, its, kind)
					assert.NotEqual(t, ours, apps, kind)
					if kind == "pid" {
						assert.NotEqual(t, its, apps, "host_pid=false never meant that containers see each other's processes")
					} else {
						assert.Equal(t, its, apps, "the containers of a pod share its %s namespace", kind)
					}
				}

				resp, err := c.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.id})
				require.NoError(t, err)
				want := hostNamespaces(host.network, host.pid, host.ipc)
				got := resp.Status.Linux.Namespaces.Options
				assert.Equal(t, []runtimeapi.NamespaceMode{want.Network, want.Pid, want.Ipc}, []runtimeapi.NamespaceMode{got.GetNetwork(), got.GetPid(), got.GetIpc()},
					"as a client of v1alpha1 reads it")
			})
		}
	}
}

// namespace identifies a namespace of a process.
func namespace(t testing.TB, pid int, kind string) string {
	t.Helper()
	link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
	require.NoError(t, err)
	return link
}
