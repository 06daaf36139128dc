package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/base/host"
	"github.com/criproxy/criproxy/internal/observe/why"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// A fakeNode is a made-up node with a kubelet, a criproxy and a containerd, on which nothing
// is wrong.
type fakeNode struct {
	testing.TB
	Node
	served    map[string]host.Process // :: path of a socket → the process that serves it
	connected map[string][]uint32     // :: path → inodes
}

func newFakeNode(t *testing.T) *fakeNode {
	dir := testkit.SocketDir(t)
	m := &fakeNode{TB: t, served: map[string]host.Process{}, connected: map[string][]uint32{}}
	m.Node = Node{
		Root: dir, Listen: "/run/criproxy.sock", Separator: "__",
		Backends:  []Backend{{Name: "primary", Address: "/run/containerd/containerd.sock", Driver: "systemd"}, {Name: "kata.example", Prefix: "kata.example", Address: "/run/kata.sock", Driver: "systemd"}},
		Version:   func(string) (string, error) { return "v1.34.1", nil },
		Connected: func(path string) ([]uint32, error) { return m.connected[strings.TrimPrefix(path, dir)], nil },
		Served: func(path string) (host.Process, error) {
			if process, ok := m.served[strings.TrimPrefix(path, dir)]; ok {
				return process, nil
			}
			return host.Process{}, syscall.ECONNREFUSED
		},
	}
	m.socket("/run/criproxy.sock", "criproxy", 20)
	m.socket("/run/containerd/containerd.sock", "containerd", 30)
	m.socket("/run/kata.sock", "containerd", 31)
	m.process(10, "kubelet", "kubelet", "--config=/var/lib/kubelet/config.yaml")
	m.process(20, "criproxy", "criproxy", "-config", "x")
	m.write("/var/lib/kubelet/config.yaml", "containerRuntimeEndpoint: unix:///run/criproxy.sock\ncgroupDriver: systemd\n")
	m.write("/etc/crictl.yaml", "runtime-endpoint: unix:///run/criproxy.sock\n")
	m.write("/run/logs/0", "hello")
	m.link("/var/log/pods/p/c/0.log", filepath.Join(dir, "run/logs/0")) // as dockershim and some runtimes have it
	m.link("/var/log/containers/web_default_main-1234.log", filepath.Join(dir, "var/log/pods/p/c/0.log"))
	m.link("/var/log/containers/vm_default_main-kata.example__1234.log", "../pods/p/c/0.log")
	return m
}

func (m *fakeNode) path(path string) string {
	at := filepath.Join(m.Root, path)
	require.NoError(m, os.MkdirAll(filepath.Dir(at), 0o755))
	return at
}

func (m *fakeNode) write(path, text string) {
	require.NoError(m, os.WriteFile(m.path(path), []byte(text), 0o600))
}

func (m *fakeNode) link(path, to string) { require.NoError(m, os.Symlink(to, m.path(path))) }

func (m *fakeNode) socket(path, comm string, pid int32) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: m.path(path), Net: "unix"})
	require.NoError(m, err)
	l.SetUnlinkOnClose(false)
	require.NoError(m, l.Close())
	require.NoError(m, os.Chmod(m.path(path), 0o660))
	m.served[path] = host.Process{Name: comm, PID: pid}
}

func (m *fakeNode) process(pid int, comm string, args ...string) {
	dir := fmt.Sprintf("/proc/%d/", pid)
	m.write(dir+"comm", comm+"\n")
	m.write(dir+"cmdline", strings.Join(args, "\x00")+"\x00")
}

// has makes a process have a socket.
func (m *fakeNode) has(pid int, inode uint32) {
	m.link(fmt.Sprintf("/proc/%d/fd/%d", pid, inode), fmt.Sprintf("socket:[%d]", inode))
}

// examine returns what is found.
func (m *fakeNode) examine() []why.Finding {
	found, _ := m.Examine()
	return found
}

// At containerd's path kubelet needs no setting, and doctor said that it names no runtime to speak to.
func TestNothingIsFoundAtKubeletsOwnDefault(t *testing.T) {
	m := newFakeNode(t)
	m.Listen, m.Backends[0].Address = "/run/containerd/containerd.sock", "/run/containerd/containerd.runtime.sock"
	m.served[m.Listen] = host.Process{Name: "criproxy", PID: 20}
	m.socket(m.Backends[0].Address, "containerd", 30)
	m.write("/var/lib/kubelet/config.yaml", "cgroupDriver: systemd\n")
	m.write("/etc/crictl.yaml", "runtime-endpoint: unix:///run/containerd/containerd.sock\n")
	found, kubelet := m.Examine()
	assert.Empty(t, found)
	assert.Equal(t, "/run/containerd/containerd.sock", kubelet.Endpoint)
}

func TestNothingIsFoundOnAGoodNode(t *testing.T) {
	found, kubelet := newFakeNode(t).Examine()
	assert.Empty(t, found)
	require.NotNil(t, kubelet)
	assert.Equal(t, Kubelet{Process: 10, Version: "v1.34.1", Endpoint: "/run/criproxy.sock", Driver: "systemd"},
		Kubelet{Process: kubelet.Process, Version: kubelet.Version, Endpoint: kubelet.Endpoint, Images: kubelet.Images, Driver: kubelet.Driver})
}

// doctor took a criproxy whose program has another name for another program.
func TestACriproxyIsKnownByItsAdminSocket(t *testing.T) {
	m := newFakeNode(t)
	m.process(21, "front", "front")
	m.served["/run/criproxy.sock"] = host.Process{Name: "front", PID: 21}
	m.has(21, 77)
	m.connected["/run/kata.sock"] = []uint32{77}
	assert.Len(t, m.examine(), 2, "it serves the socket, and bypasses criproxy")
	m.Criproxys = Criproxys{21: {"/run/criproxy.sock"}}
	assert.Empty(t, m.examine())
	m.served["/run/kata.sock"] = host.Process{Name: "front", PID: 21} // as in a demo
	assert.Empty(t, m.examine(), "its other sockets may be those of runtimes")
}

// doctor said twice of a runtime of a demo that was stopped that calls to it may come back.
func TestOnlyWhatMayComeBackIsACircle(t *testing.T) {
	m := newFakeNode(t)
	m.served["/run/kata.sock"] = host.Process{Name: DemoProcess, PID: 21}
	assert.Empty(t, m.examine(), "a demo serves its runtimes")
	m.served["/run/kata.sock"] = host.Process{Name: "criproxy", PID: 21}
	assert.Len(t, m.examine(), 1)
	m.Circles = func(host.Process, string) bool { return false }
	assert.Empty(t, m.examine(), "it is known to have other backends")
	m.served["/run/kata.sock"] = host.Process{Name: "containerd", PID: 21, Stopped: true}
	assert.Len(t, m.examine(), 1)
	m.Backends[1].Reported = true
	assert.Empty(t, m.examine(), "it is said already")
}

func TestDropInsAloneConfigureAKubelet(t *testing.T) {
	m := newFakeNode(t)
	m.process(10, "kubelet", "kubelet", "--config-dir=etc/conf.d") // as RKE2 starts it
	m.write("/proc/10/cwd/etc/conf.d/00-defaults.conf", "containerRuntimeEndpoint: unix:///run/criproxy.sock\ncgroupDriver: systemd\n")
	assert.Empty(t, m.examine())
}

func TestOfSeveralKubeletsOursIsLookedAt(t *testing.T) {
	for name, test := range map[string]struct {
		ours, text string
	}{
		"that which speaks to us":        {"/run/criproxy.sock", ""},
		"that which speaks to a runtime": {"/run/kata.sock", "kubelet bypasses criproxy: it speaks to /run/kata.sock, not to"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newFakeNode(t)
			m.process(10, "kubelet", "kubelet", "--container-runtime-endpoint=unix:///run/kind.sock")
			m.process(11, "kubelet", "kubelet", "--cgroup-driver=systemd", "--container-runtime-endpoint=unix://"+test.ours)
			m.process(12, "kubelet", "kubelet", "--container-runtime-endpoint=unix:///run/minikube.sock")
			found, kubelet := m.Examine()
			assert.Equal(t, 11, kubelet.Process)
			if test.text == "" {
				assert.Empty(t, found)
				return
			}
			require.NotEmpty(t, found)
			assert.Contains(t, found[0].Text, test.text)
		})
	}
}

func TestEachTroubleIsFoundWithItsCure(t *testing.T) {
	for name, test := range map[string]struct {
		make       func(m *fakeNode)
		level      why.Level
		text, cure string
	}{
		"kubelet past us": {func(m *fakeNode) {
			m.write("/var/lib/kubelet/config.yaml", "containerRuntimeEndpoint: unix:///run/containerd/containerd.sock\ncgroupDriver: systemd\n")
		}, why.Error, "kubelet bypasses criproxy: it speaks to /run/containerd/containerd.sock, not to /run/criproxy.sock", "set containerRuntimeEndpoint: unix:///run/criproxy.sock in /var/lib/kubelet/config.yaml"},
		"kubelet takes us for CRI-O": {func(m *fakeNode) {
			m.Listen = "/run/crio/crio.sock"
			m.socket(m.Listen, "criproxy", 20)
		}, why.Error, "kubelet takes /run/crio/crio.sock for CRI-O's own socket", "choose another path with listen"},
		"kubelet past us, at the socket of CRI-O": {func(m *fakeNode) {
			m.Listen = "/run/crio/crio.sock"
			m.socket(m.Listen, "criproxy", 20)
			m.Backends[0].HTTP = true
		}, why.Error, "not to /run/crio/crio.sock", "set containerRuntimeEndpoint: unix:///run/crio/crio.sock"},
		"kubelet past us by a drop-in": {func(m *fakeNode) {
			m.process(10, "kubelet", "kubelet", "--config=/var/lib/kubelet/config.yaml", "--config-dir", "/etc/kubelet.d")
			m.write("/etc/kubelet.d/10-a.conf", "containerRuntimeEndpoint: unix:///run/a.sock\n")
			m.write("/etc/kubelet.d/20-b/b.conf", "containerRuntimeEndpoint: unix:///run/b.sock\n")
			m.write("/etc/kubelet.d/30-c.yaml", "containerRuntimeEndpoint: unix:///run/c.sock\n")
			m.write("/etc/kubelet.d/30-d.conf", "port: 1\n")
		}, why.Error, "kubelet bypasses criproxy: it speaks to /run/b.sock", "in /etc/kubelet.d/20-b/b.conf, and restart"},
		"kubelet inside another program": {func(m *fakeNode) {
			m.process(10, "k3s-server", "/usr/local/bin/k3s server")
		}, why.Note, "kubelet runs inside k3s-server (process 10)", "set it with container-runtime-endpoint in /etc/rancher/k3s/config.yaml: unix:///run/criproxy.sock"},
		"kubelet past us by a flag": {func(m *fakeNode) {
			m.process(10, "kubelet", "kubelet", "--config=/var/lib/kubelet/config.yaml", "--container-runtime-endpoint", "unix:///run/x.sock")
		}, why.Error, "kubelet bypasses criproxy: it speaks to /run/x.sock", "start kubelet with --container-runtime-endpoint=unix:///run/criproxy.sock"},
		"kubelet without endpoint": {func(m *fakeNode) { m.process(10, "kubelet", "kubelet") }, why.Error, "kubelet bypasses criproxy: it speaks to /run/containerd/containerd.sock", "--container-runtime-endpoint"},
		"kubelet 1.23 without endpoint": {func(m *fakeNode) {
			m.process(10, "kubelet", "kubelet")
			m.Version = func(string) (string, error) { return "v1.23.17", nil }
		}, why.Error, "names no runtime", "--container-runtime-endpoint"},
		"images past us": {func(m *fakeNode) {
			m.process(10, "kubelet", "kubelet", "--config=/var/lib/kubelet/config.yaml", "--image-service-endpoint=/run/containerd/containerd.sock")
		}, why.Error, "pulls them through /run/containerd/containerd.sock", "imageServiceEndpoint"},
		"dockershim": {func(m *fakeNode) {
			m.process(10, "kubelet", "kubelet", "--config=/var/lib/kubelet/config.yaml", "--container-runtime=docker")
		}, why.Error, "uses no socket at all", "--container-runtime=remote"},
		"no kubelet":         {func(m *fakeNode) { require.NoError(m, os.RemoveAll(m.path("/proc/10"))) }, why.Note, "kubelet does not run", "run doctor again"},
		"an unreadable file": {func(m *fakeNode) { require.NoError(m, os.Remove(m.path("/var/lib/kubelet/config.yaml"))) }, why.Warning, "cannot read kubelet's configuration", "as root"},
		"an old kubelet":     {func(m *fakeNode) { m.Version = func(string) (string, error) { return "v1.5.2", nil } }, why.Error, "kubelet v1.5.2", "1.6 or newer"},
		"a new kubelet and an old primary": {func(m *fakeNode) {
			m.Version = func(string) (string, error) { return "v1.38.0", nil }
			m.Backends[0].Driver = ""
		}, why.Warning, "kubelet v1.38.0 asks the primary for its cgroup driver", "containerd from 2.0"},
		"an unknown version": {func(m *fakeNode) { m.Version = func(string) (string, error) { return "", errors.New("x") } }, why.Note, "kubelet's version is unknown: x", "root"},
		"a version that takes long": {func(m *fakeNode) {
			m.Version = func(string) (string, error) { return "", context.DeadlineExceeded }
		}, why.Note, "kubelet's version is unknown: context deadline exceeded", "less busy"},

		"different drivers":            {func(m *fakeNode) { m.Backends[1].Driver = "cgroupfs" }, why.Error, "backend kata.example uses the cgroup driver cgroupfs, the primary systemd", "SystemdCgroup = true"},
		"a primary that does not tell": {func(m *fakeNode) { m.Backends[0].Driver = "" }, why.Note, "kubelet uses systemd", "make sure"},
		"another driver than kubelet's": {func(m *fakeNode) { m.Backends[0].Driver, m.Backends[1].Driver = "", "cgroupfs" }, why.Error,
			"backend kata.example uses the cgroup driver cgroupfs, kubelet systemd", "cgroupDriver"},

		"we do not run": {func(m *fakeNode) { require.NoError(m, os.Remove(m.path("/run/criproxy.sock"))) }, why.Error, "the socket of criproxy, /run/criproxy.sock, does not exist", "systemctl start criproxy"},
		"a left file":   {func(m *fakeNode) { delete(m.served, "/run/kata.sock") }, why.Error, "no process serves /run/kata.sock of backend kata.example any more", "calls to it fail until a process serves /run/kata.sock"},
		"no folder":     {func(m *fakeNode) { m.Listen = "/run/nothing/c.sock" }, why.Error, "the folder of /run/nothing/c.sock does not exist", "mkdir /run/nothing"},
		"no socket": {func(m *fakeNode) {
			require.NoError(m, os.Remove(m.path("/run/kata.sock")))
			m.write("/run/kata.sock", "")
		}, why.Error, "/run/kata.sock of backend kata.example is not a socket", "remove it"},
		"a socket for all": {func(m *fakeNode) { require.NoError(m, os.Chmod(m.path("/run/kata.sock"), 0o666)) }, why.Error, "every user can connect to /run/kata.sock", "chmod o-rwx"},
		"a folder for all": {func(m *fakeNode) { require.NoError(m, os.Chmod(m.path("/run/"), 0o777)) }, why.Error, "every user can put another socket in place of", "chmod o-w /run"},
		"another process":  {func(m *fakeNode) { m.served["/run/criproxy.sock"] = host.Process{Name: "crio", PID: 7} }, why.Error, "is served by crio (process 7), not by criproxy", "choose another path"},
		"ourselves behind": {func(m *fakeNode) { m.served["/run/kata.sock"] = host.Process{Name: "criproxy", PID: 20} }, why.Warning, "is served by criproxy (process 20)", "come back to it"},
		"a stopped runtime": {func(m *fakeNode) {
			m.served["/run/kata.sock"] = host.Process{Name: "containerd", PID: 31, Stopped: true}
		}, why.Error, "the socket of backend kata.example, /run/kata.sock, is served by containerd (process 31), which is stopped (state T)", "kill -CONT 31"},
		"a stopped criproxy behind": {func(m *fakeNode) {
			m.served["/run/kata.sock"] = host.Process{Name: "criproxy", PID: 21, Stopped: true}
		}, why.Error, "is served by criproxy (process 21), which is stopped (state T)", "kill -CONT 21"},
		"we are stopped": {func(m *fakeNode) {
			m.served["/run/criproxy.sock"] = host.Process{Name: "criproxy", PID: 20, Stopped: true}
		}, why.Error, "the socket of criproxy, /run/criproxy.sock, is served by criproxy (process 20), which is stopped (state T)", "kill -CONT 20"},
		"a criproxy of another name behind": {func(m *fakeNode) {
			m.Criproxys, m.served["/run/kata.sock"] = Criproxys{21: {"/run/kata.sock"}}, host.Process{Name: "front", PID: 21}
		}, why.Warning, "is served by front (process 21)", "come back to it"},
		"a socket that may not be opened": {func(m *fakeNode) {
			m.Served = func(string) (host.Process, error) { return host.Process{}, syscall.EACCES }
		}, why.Note, "may not connect to", "as root"},

		"behind our back": {func(m *fakeNode) {
			m.process(40, "nerdctl", "nerdctl")
			m.has(40, 77)
			m.connected["/run/containerd/containerd.sock"] = []uint32{77}
		}, why.Warning, "nerdctl (process 40) bypasses criproxy: it talks to backend primary directly", "unix:///run/criproxy.sock"},
		"cAdvisor": {func(m *fakeNode) {
			m.has(10, 78)
			m.connected["/run/containerd/containerd.sock"] = []uint32{78}
		}, why.Note, "this is cAdvisor", "start kubelet with --containerd=/run/criproxy.sock, or with the feature gate PodAndContainerStatsFromCRI"},
		"cAdvisor beside one runtime": {func(m *fakeNode) {
			m.Backends = m.Backends[:1]
			m.has(10, 78)
			m.connected["/run/containerd/containerd.sock"] = []uint32{78}
		}, why.Note, "this is cAdvisor", "nothing is wrong"},
		"cAdvisor, and figures from CRI": {func(m *fakeNode) {
			m.write("/var/lib/kubelet/config.yaml", "containerRuntimeEndpoint: unix:///run/criproxy.sock\ncgroupDriver: systemd\nfeatureGates: {PodAndContainerStatsFromCRI: true}\n")
			m.has(10, 78)
			m.connected["/run/containerd/containerd.sock"] = []uint32{78}
		}, why.Note, "this is cAdvisor", "nothing is wrong; kubelet gets its figures about pods from CRI"},
		"cAdvisor, and figures from CRI by a flag": {func(m *fakeNode) {
			m.process(10, "kubelet", "kubelet", "--config=/var/lib/kubelet/config.yaml", "--feature-gates=Other=true,PodAndContainerStatsFromCRI=true")
			m.has(10, 78)
			m.connected["/run/containerd/containerd.sock"] = []uint32{78}
		}, why.Note, "this is cAdvisor", "nothing is wrong; kubelet gets its figures about pods from CRI"},
		"an unseen process": {func(m *fakeNode) { m.connected["/run/kata.sock"] = []uint32{79} }, why.Note, "are unknown", "another container"},
		"a kernel that says nothing": {func(m *fakeNode) {
			m.Connected = func(string) ([]uint32, error) { return nil, errors.New("no") }
		}, why.Note, "cannot list the clients of ", "root"},
		"crictl": {func(m *fakeNode) {
			m.write("/etc/crictl.yaml", "image-endpoint: unix:///run/containerd/containerd.sock\n")
		}, why.Warning, "crictl speaks to /run/containerd/containerd.sock (image-endpoint", "set image-endpoint: unix:///run/criproxy.sock"},

		"a dangling link":   {func(m *fakeNode) { m.link("/var/log/containers/a_b_c-1.log", "../pods/gone.log") }, why.Warning, "links in /var/log/containers lead nowhere (1, such as a_b_c-1.log)", "find /var/log/containers -xtype l -delete"},
		"a removed runtime": {func(m *fakeNode) { m.link("/var/log/containers/a_b_c-old.io__1.log", "../pods/p/c/0.log") }, why.Warning, "containers of old.io, which is no longer a backend", "drain"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newFakeNode(t)
			test.make(m)
			found := m.examine()
			i := slices.IndexFunc(found, func(f why.Finding) bool { return strings.Contains(f.Text, test.text) })
			require.GreaterOrEqual(t, i, 0, "%v", found)
			assert.Equal(t, test.level, found[i].Level)
			assert.Contains(t, found[i].Cure, test.cure)
			for j, f := range found {
				assert.NotEmpty(t, f.Cure)
				assert.True(t, j == 0 || found[j-1].Level.Rank() <= f.Level.Rank(), "the worst is first")
			}
		})
	}
}

func TestOurOwnConnectionsAreNotBehindOurBack(t *testing.T) {
	m := newFakeNode(t)
	m.has(20, 80)
	m.connected["/run/kata.sock"] = []uint32{80}
	assert.Empty(t, m.examine())
}

func TestKubeletHasNothingToDoWithAnotherAPI(t *testing.T) {
	m := newFakeNode(t)
	m.OtherAPI = true
	require.NoError(t, os.RemoveAll(m.path("/proc/10")))
	m.write("/etc/crictl.yaml", "runtime-endpoint: unix:///run/containerd/containerd.sock\n")
	m.link("/var/log/containers/a_b_c-old.io__1.log", "/var/log/pods/gone.log")
	assert.Empty(t, m.examine())
}

func TestThePathOfASocketMayLeadThroughVarRun(t *testing.T) {
	m := newFakeNode(t)
	m.write("/var/lib/kubelet/config.yaml", "containerRuntimeEndpoint: unix:///var/run/criproxy.sock\ncgroupDriver: systemd\n")
	m.link("/var/run", filepath.Join(m.Root, "run"))
	assert.Empty(t, m.examine())
}

func TestTheKernelListsConnectedClients(t *testing.T) {
	dir := testkit.SocketDir(t)
	path := filepath.Join(dir, "a.sock")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	defer l.Close() // nothing is left to be done
	none, err := Connected(path)
	require.NoError(t, err)
	assert.Empty(t, none)
	conn, err := net.Dial("unix", path)
	require.NoError(t, err)
	defer conn.Close() // nothing was sent
	accepted, err := l.Accept()
	require.NoError(t, err)
	defer accepted.Close() // nothing was sent
	one, err := Connected(path)
	require.NoError(t, err)
	require.Len(t, one, 1)
	e := &examination{Node: &Node{}}
	e.processes = e.readProcesses()
	owners, all := e.owners(one)
	assert.True(t, all)
	require.Len(t, owners, 1)
	assert.Equal(t, os.Getpid(), owners[0].pid)
}
