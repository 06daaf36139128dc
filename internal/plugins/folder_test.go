package plugins_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/hook/plugin"
	"github.com/criproxy/criproxy/internal/plugins"
)

func TestUnknownPointsAreTakenAndReportedOnce(t *testing.T) {
	w := newWorld(t)
	w.plug(annotate("served", "tier", "x"))
	const file = `{"remote-endpoint": "/%s//served.sock", "runtime-hooks": ["PreRemovePodSandbox", "PreRunPodSandbox", "prerunpodsandbox"], "failure-policy": "fail", "extra": 1}`
	for range 3 {
		w.file("koordlet", fmt.Sprintf(file, w.dir))
		w.until("it is loaded", func() bool { return w.state("koordlet").State == "ready" })
		require.NoError(t, os.Remove(filepath.Join(w.cfg.Folder, "koordlet.json")))
		w.until("it is gone", func() bool { return w.state("koordlet").Name == "" })
	}
	var warnings []string
	for _, e := range happened[plugins.Loaded](w) {
		warnings = append(warnings, e.Warnings...)
	}
	assert.Equal(t, []string{
		`failure-policy: "fail" is taken as Ignore; want "Fail" or "Ignore"`,
		`the key "extra" is ignored`,
		`runtime-hooks: there is no point "PreRemovePodSandbox"; criproxy will never ask the plugin there (did you mean "PostRemovePodSandbox"?)`,
		`runtime-hooks: there is no point "prerunpodsandbox"; criproxy will never ask the plugin there (did you mean "PreRunPodSandbox"?)`,
	}, warnings)
	assert.Len(t, happened[plugins.Removed](w), 3)
}

// The file as koordlet writes it, next to its socket with two slashes.
func TestTheFileOfKoordlet(t *testing.T) {
	f, warnings, err := plugins.ParseFile([]byte("{\n\t\"remote-endpoint\": \"/var/run/koordlet//koordlet.sock\",\n\t\"failure-policy\": \"Ignore\",\n\t\"runtime-hooks\": [\n\t\t\"PreUpdateContainerResources\",\n\t\t\"PreRunPodSandbox\"\n\t]\n}"))
	require.NoError(t, err)
	assert.Empty(t, warnings)
	assert.Equal(t, &plugins.File{Endpoint: "/var/run/koordlet/koordlet.sock", Timeout: 2 * time.Second, Hooks: []string{"PreUpdateContainerResources", "PreRunPodSandbox"}}, f)
}

// A ConfigMap is a folder of links into another folder, which a further link switches.
func TestAConfigMapThatIsSwitchedTakesEffect(t *testing.T) {
	w := newWorld(t)
	w.plug(annotate("served", "tier", "x"))
	version := func(name, timeout string) {
		dir := filepath.Join(w.cfg.Folder, name)
		require.NoError(t, os.Mkdir(dir, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "map.json"), fmt.Appendf(nil, `{"remote-endpoint": "%s/served.sock", "timeout": %q}`, w.dir, timeout), 0o644))
		next := filepath.Join(w.cfg.Folder, "..data_tmp")
		require.NoError(t, os.Symlink(name, next))
		require.NoError(t, os.Rename(next, filepath.Join(w.cfg.Folder, "..data")))
	}
	version("..1", "1s")
	require.NoError(t, os.Symlink("..data/map.json", filepath.Join(w.cfg.Folder, "map.json")))
	w.until("the first version is there", func() bool { return w.state("map").Timeout == "1s" })
	version("..2", "3s")
	w.until("the second version is there", func() bool { return w.state("map").Timeout == "3s" })
	require.NoError(t, os.RemoveAll(filepath.Join(w.cfg.Folder, "..data")))
	w.until("a link that leads nowhere is reported", func() bool { return w.state("map").Error == "it is a symbolic link that leads nowhere" })
	assert.Equal(t, "3s", w.state("map").Timeout)
}

// A file may change without a new modification time, or a new inode.
func TestAFileIsReadWhateverItsTimeSays(t *testing.T) {
	w := newWorld(t)
	w.plug(annotate("served", "tier", "x"))
	path := filepath.Join(w.cfg.Folder, "old.json")
	old := time.Unix(1000, 0)
	for i := range 3 {
		require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, `{"remote-endpoint": "%s/served.sock", "timeout": %d}`, w.dir, i+1), 0o644))
		require.NoError(t, os.Chtimes(path, old, old))
		w.until("it is read", func() bool { return w.state("old").Timeout == fmt.Sprintf("%ds", i+1) })
	}
}

func TestAFolderThatAppearsLaterIsRead(t *testing.T) {
	w := newWorld(t)
	p := annotate("served", "tier", "x")
	for range 2 {
		require.NoError(t, os.RemoveAll(w.cfg.Folder))
		w.until("there is nothing", func() bool { return len(w.plugins.State().Plugins) == 0 })
		unplug := w.plug(p) // it makes the folder
		w.run(podConfig("web"))
		unplug()
		require.NoError(t, w.removePods())
	}
	assert.Len(t, happened[plugins.Asked](w), 2)
}

func (w *world) removePods() error {
	for _, p := range w.runtime.Pods() {
		if _, err := w.client.RemovePodSandbox(w.ctx(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.GetId()}); err != nil {
			return err
		}
	}
	return nil
}

func TestPluginsThatAnyUserCanWriteAreNotRead(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, os.Chmod(w.cfg.Folder, 0o777))
	for _, name := range []string{"one", "two"} {
		w.file(name, fmt.Sprintf(`{"remote-endpoint": "%s/x.sock"}`, w.dir))
	}
	w.until("it is reported", func() bool { return len(happened[plugins.Trouble](w)) > 0 })
	troubles := happened[plugins.Trouble](w)
	require.Len(t, troubles, 1, "once")
	assert.ErrorContains(t, troubles[0].Err, "chmod o-w "+w.cfg.Folder)
	assert.Empty(t, w.state("one").Name)
	require.NoError(t, os.Chmod(filepath.Join(w.cfg.Folder, "two.json"), 0o666))
	require.NoError(t, os.Chmod(w.cfg.Folder, 0o755))
	w.until("it is loaded", func() bool { return w.state("one").Name != "" })
	w.until("the other is reported", func() bool { return len(happened[plugins.Broken](w)) > 0 })
	assert.ErrorContains(t, happened[plugins.Broken](w)[0].Err, "two.json can be written to by every user")
}

// The pod that serves a plugin is known by its cgroup, by the plugin's file, or from before a restart.
// The plugin never refuses calls about it.
func TestThePodThatServesThePluginIsNotRefused(t *testing.T) {
	w := newWorld(t)
	w.file("gone", fmt.Sprintf(`{"remote-endpoint": "%s/gone.sock", "runtime-hooks": ["PreRunPodSandbox", "PreCreateContainer"], "failure-policy": "Fail",
		"pod": {"namespace": "kube-system", "labels": {"app": "plugin"}}}`, w.dir))
	w.until("it is seen to be down", func() bool { return w.state("gone").State == "down" })
	_, err := w.client.RunPodSandbox(w.ctx(), &runtimeapi.RunPodSandboxRequest{Config: podConfig("web")})
	require.Error(t, err)
	server := podConfig("plugin")
	_, err = w.client.RunPodSandbox(w.ctx(), &runtimeapi.RunPodSandboxRequest{Config: server})
	require.Error(t, err, "in another namespace any pod could have that label")
	server.Metadata.Namespace = "kube-system"
	pod := w.run(server)
	_, err = w.create(pod, server, containerConfig())
	require.NoError(t, err)
	var spared int
	for _, e := range happened[plugins.Asked](w) {
		if e.Exempt {
			spared++
		}
	}
	assert.Equal(t, 2, spared)
}

func TestThePodThatServesAPluginIsRemembered(t *testing.T) {
	for _, cgroup := range []string{
		"11:memory:/kubepods/besteffort/pod3f1c2a5e-0000-4000-8000-abcdefabcdef/0123456789ab\n",
		"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod3f1c2a5e_0000_4000_8000_abcdefabcdef.slice/cri-containerd-0123456789ab.scope\n",
	} {
		w := newWorld(t)
		p := plugin.Plugin{Name: "plugin", Fail: true, PreRunPodSandbox: func(context.Context, *plugin.Pod) (*plugin.PodAnswer, error) { return nil, nil }}
		unplug := w.plug(p)
		server := podConfig("plugin-x7f2")
		server.Metadata.Uid, server.Metadata.Namespace = "3f1c2a5e-0000-4000-8000-abcdefabcdef", "kube-system"
		server.Labels = map[string]string{"app": "found", "controller-revision-hash": "1", "io.kubernetes.pod.namespace": "kube-system"}
		w.run(server)
		w.plugins.RunsIn("plugin.json", cgroup)
		w.run(podConfig("web")) // this asks the plugin again, perhaps while its connection has just become ready: that notes it too
		var kept []byte
		w.until("the pod is noted", func() bool {
			var err error
			kept, err = os.ReadFile(w.cfg.Servers)
			return err == nil
		})
		assert.JSONEq(t, `{"plugin.json": {"namespace": "kube-system", "name": "plugin-x7f2", "labels": {"app": "found"}}}`, string(kept))

		unplug()
		w.stop()
		w.start()
		w.file("plugin", fmt.Sprintf(`{"remote-endpoint": "%s/plugin.sock", "runtime-hooks": ["PreRunPodSandbox"], "failure-policy": "Fail"}`, w.dir))
		w.until("it is seen to be down", func() bool { return w.state("plugin").State == "down" })
		again := podConfig("plugin-9k3d")
		again.Metadata.Namespace = "kube-system"
		_, err := w.client.RunPodSandbox(w.ctx(), &runtimeapi.RunPodSandboxRequest{Config: again})
		require.Error(t, err)
		again.Labels = map[string]string{"app": "found", "controller-revision-hash": "2"}
		w.run(again)
	}
}

// With Fail, a plugin cannot refuse calls about its own pod. Another plugin can, but only by its
// answer: if it does not answer, the call goes on.
func TestOnlyARefusalStopsAPluginsPod(t *testing.T) {
	w := newWorld(t)
	no := func(context.Context, string, []byte) ([]byte, error) { return nil, status.Error(codes.Aborted, "no") }
	w.raw("own", "Fail", []string{"PreRunPodSandbox"}, no)
	w.file("other", fmt.Sprintf(`{"remote-endpoint": "%s/other.sock", "runtime-hooks": ["PreRunPodSandbox"], "failure-policy": "Fail"}`, w.dir))
	w.file("own", fmt.Sprintf(`{"remote-endpoint": "%s/own.sock", "runtime-hooks": ["PreRunPodSandbox"], "failure-policy": "Fail", "pod": {"namespace": "default", "labels": {"app": "own"}}}`, w.dir))
	w.until("both are known", func() bool { return w.state("other").State == "down" && w.state("own").State == "ready" })
	w.until("the pod is", func() bool { return len(happened[plugins.Loaded](w)) == 3 })
	w.run(podConfig("own"))
	w.raw("third", "Fail", []string{"PreRunPodSandbox"}, no)
	_, err := w.client.RunPodSandbox(w.ctx(), &runtimeapi.RunPodSandboxRequest{Config: podConfig("own")})
	assert.ErrorContains(t, err, "plugin third.json says no")
}

func TestTheCgroupOfAPeerIsThatOfItsProcess(t *testing.T) {
	w := newWorld(t)
	nc, err := net.Dial("unix", filepath.Join(w.dir, "r.sock"))
	require.NoError(t, err)
	defer nc.Close()
	own, err := os.ReadFile("/proc/self/cgroup")
	require.NoError(t, err)
	assert.Equal(t, string(own), plugins.CgroupOf(nc))
}
