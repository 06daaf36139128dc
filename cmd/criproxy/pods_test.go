package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/command/cli"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/show"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// ask runs a command with the admin socket of p, and returns its output.
func (p *process) ask(args ...string) (string, error) {
	p.Helper()
	var out bytes.Buffer
	err := run(p.Context(), append(args, "-admin", config.AdminBeside(p.front)), &out, &out)
	return out.String(), err
}

// says is ask for a command that must not fail.
func (p *process) says(args ...string) string {
	p.Helper()
	return says(p, append(args, "-admin", config.AdminBeside(p.front))...)
}

// says runs a command, which must not fail, and returns its output.
func says(t testing.TB, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), args, &out, &out), "%s", &out)
	return out.String()
}

func (p *process) pods(args ...string) admin.Pods {
	p.Helper()
	out := p.says(append([]string{"pods", "-o", "json"}, args...)...)
	var pods admin.Pods
	require.NoError(p, json.Unmarshal([]byte(out), &pods))
	return pods
}

// podOn is the configuration of a pod for the runtime of a name.
func podOn(target, name string) *runtimeapi.PodSandboxConfig {
	cfg := testkit.PodConfig(name)
	cfg.Annotations["kubernetes.io/target-runtime"] = target
	return cfg
}

// runPod creates a pod with a running container, and returns both ids.
func (p *process) runPod(name, target string) (sandbox, container string) {
	p.Helper()
	return p.run(podOn(target, name))
}

// run is runPod with the configuration of the pod.
func (p *process) run(cfg *runtimeapi.PodSandboxConfig) (sandbox, container string) {
	p.Helper()
	client := runtimeapi.NewRuntimeServiceClient(p.connect(p.front))
	ran, err := client.RunPodSandbox(p.Context(), &runtimeapi.RunPodSandboxRequest{Config: cfg})
	require.NoError(p, err)
	_, err = runtimeapi.NewImageServiceClient(p.connect(p.front)).PullImage(p.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: "busybox:1"}, SandboxConfig: cfg})
	require.NoError(p, err)
	created, err := client.CreateContainer(p.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: ran.GetPodSandboxId(), SandboxConfig: cfg,
		Config: &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Image: &runtimeapi.ImageSpec{Image: "busybox:1"}}})
	require.NoError(p, err)
	_, err = client.StartContainer(p.Context(), &runtimeapi.StartContainerRequest{ContainerId: created.GetContainerId()})
	require.NoError(p, err)
	return ran.GetPodSandboxId(), created.GetContainerId()
}

func TestPodsSaysOnWhichRuntimeEachIs(t *testing.T) {
	t.Parallel()
	p := startedProcess(t)
	p.runPod("web", "")
	sandbox, container := p.runPod("vm", "beta.io")
	pods := p.pods()
	require.Len(t, pods.Pods, 2)
	vm, web := pods.Pods[0], pods.Pods[1]
	assert.Equal(t, "primary web ready", web.Backend+" "+web.Name+" "+web.State)
	assert.Equal(t, web.ID, web.NativeID)
	assert.Equal(t, "beta.io vm ready", vm.Backend+" "+vm.Name+" "+vm.State)
	assert.Equal(t, sandbox, vm.ID)
	assert.Equal(t, "beta.io__"+vm.NativeID, vm.ID)
	assert.False(t, vm.FromCache)
	assert.False(t, vm.Created.IsZero())
	require.Len(t, vm.Containers, 1)
	assert.Equal(t, "main running "+container, vm.Containers[0].Name+" "+vm.Containers[0].State+" "+vm.Containers[0].ID)
	assert.Len(t, p.pods("-backend", "beta.*").Pods, 1)
	assert.Empty(t, p.pods("-n", "nobodys").Pods)

	text := p.says("pods")
	assert.Regexp(t, `(?m)^NAMESPACE +POD +BACKEND +STATE +SINCE +CONTAINERS +ID$`, text)
	assert.Regexp(t, `(?m)^\S+ +vm +beta\.io +ready +\d+s +1/1 +beta\.io__[0-9a-f]{13}$`, text)
	text = p.says("pods", "-o", "wide")
	assert.Contains(t, text, vm.NativeID)
	assert.Contains(t, text, "busybox:1")
	text = p.says("pods", "-o", "yaml")
	assert.Contains(t, text, "\n    backend: beta.io\n")

	metrics := p.scrape()
	for _, labels := range []string{`{backend="beta.io",kind="sandbox"}`, `{backend="beta.io",kind="container"}`, `{backend="primary",kind="sandbox"}`} {
		assert.Equal(t, 1.0, metrics["criproxy_backend_items"+labels], labels)
	}

	// A runtime that is gone still has its pods.
	p.runtimes[1].Kill()
	testkit.Eventually(t, "it is gone", func() bool { _, r := p.status(); return r.Backends[1].State == "gone" })
	pods = p.pods()
	require.Len(t, pods.Pods, 2)
	assert.True(t, pods.Pods[0].FromCache)
	assert.False(t, pods.Pods[1].FromCache)
	text = p.says("pods")
	assert.Regexp(t, `vm +beta\.io +ready\? `, text)
	assert.Contains(t, text, "beta.io does not answer: a ? marks its pods, which are shown as they were last known")
}

// Of an only runtime that hung, it printed "No pods."
func TestPodsOfAnOnlyRuntimeThatHangsAreMissing(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.writeAll("")
	p.launch()
	p.runtimes[0].When(testkit.Hanging("ListPodSandbox", "ListContainers"))
	text, err := p.ask("pods")
	require.EqualError(t, err, "the pods of backend primary are missing here: it has not answered within 3s")
	assert.Empty(t, text)
	p.runtimes[0].When(nil)
}

func TestWhereFindsAnIdHoweverItIsWritten(t *testing.T) {
	t.Parallel()
	for _, ids := range []string{config.PrefixIDs, config.NativeIDs} {
		t.Run(ids, func(t *testing.T) {
			p := newProcess(t)
			p.write("ids: " + ids + "\n")
			p.launch()
			p.runPod("web", "")
			p.runPod("vm", "beta.io")
			vm := p.pods("-backend", "beta.io").Pods[0]
			main := vm.Containers[0]
			for _, id := range []string{main.ID, main.NativeID, main.ID[:len(main.ID)-20], main.NativeID[:12], "containerd://" + main.ID} {
				var places []show.Place
				out := p.says("where", id, "-o", "json")
				require.NoError(t, json.Unmarshal([]byte(out), &places))
				require.Len(t, places, 1, id)
				assert.Equal(t, "beta.io vm main", fmt.Sprint(places[0].Backend, " ", places[0].Pod.Name, " ", places[0].Container.Name))
			}
			text := p.says("where", main.ID)
			assert.Regexp(t, `^container main of pod \S+/vm is on beta\.io\n`, text)
			text = p.says("where", vm.NativeID)
			assert.Regexp(t, `^pod \S+/vm is on beta\.io\n`, text)
			_, err := p.ask("where", "0123abc")
			assert.ErrorContains(t, err, `no backend has a pod whose NAME or NAMESPACE/NAME is "0123abc", or a pod or a container whose id or uid begins with it`)
			if ids == config.PrefixIDs {
				_, err = p.ask("where", "beta.io")
				assert.ErrorContains(t, err, "is not enough of an id: all ids of beta.io begin like this; crictl shows 13 characters")
			}
		})
	}
}

func TestAnOutageIsRemembered(t *testing.T) {
	t.Parallel()
	p := startedProcess(t)
	_, r := p.status()
	require.NotEmpty(t, r.Backends[1].Runtime)
	runtime := r.Backends[1].Runtime
	assert.Empty(t, r.Backends[1].Outages)
	assert.False(t, r.Recorder.Oldest.IsZero())
	kept := func() string {
		text := p.says("status", "-o", "json")
		path := filepath.Join(t.TempDir(), "before.json")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	up := kept()
	p.runtimes[1].Kill()
	testkit.Eventually(t, "it is gone", func() bool { _, r = p.status(); return r.Backends[1].State == "gone" })
	gone := kept()
	for _, before := range []string{gone, filepath.Join(t.TempDir(), "absent")} {
		_, err := p.ask("status", "-exit-code", "-before", before)
		assert.Equal(t, before == gone, err == nil, "%s: %v", before, err)
	}
	_, err := p.ask("status", "-exit-code", "-before", up)
	require.ErrorIs(t, err, cli.ErrDegraded, "it is worse")
	assert.Equal(t, runtime, r.Backends[1].Runtime, "the kind of runtime stays known while it is away")
	require.Len(t, r.Backends[1].Outages, 1)
	assert.True(t, r.Backends[1].Outages[0].To.IsZero())
	text, err := p.ask("status", "-exit-code")
	require.ErrorIs(t, err, cli.ErrDegraded)
	assert.Contains(t, text, "ready, DEGRADED: beta.io is gone")
	assert.Regexp(t, `beta\.io was gone from \S+ until now, for [\d.]+m?s, \d+ pods?, \d+ containers?: `, text)

	p.runtimes[1].Start()
	testkit.Eventually(t, "it is back", func() bool { _, r = p.status(); return r.Backends[1].State == "up" })
	require.Len(t, r.Backends[1].Outages, 1)
	assert.Equal(t, "gone", r.Backends[1].Outages[0].State)
	assert.False(t, r.Backends[1].Outages[0].To.IsZero())
	assert.Contains(t, r.Backends[1].Outages[0].Error, "0.sock"[1:])
	text = p.says("status", "-exit-code")
	assert.Regexp(t, `beta\.io was gone from \S+ to \S+, for [\d.]+m?s, \d+ pods?, \d+ containers?: `, text)
}

// LATEST ERRORS had one line for errors of different runtimes.
func TestErrorsOfDifferentRuntimesStayApart(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	for _, m := range p.runtimes {
		m.When(testkit.Failing(status.Error(codes.Internal, "out of order"), "StartContainer"))
	}
	p.launch()
	client := runtimeapi.NewRuntimeServiceClient(p.connect(p.front))
	for _, id := range []string{"7f", "beta.io__7f", "beta.io__8a"} {
		_, err := client.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id})
		require.Error(t, err)
	}
	p.runtimes[1].Kill()
	testkit.Eventually(t, "it is gone", func() bool { _, r := p.status(); return r.Backends[1].State == "gone" })
	_, err := client.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: "beta.io__7f"})
	require.Equal(t, codes.Unavailable, status.Code(err))
	text, r := p.status()
	var got []string
	for _, e := range r.Errors {
		got = append(got, fmt.Sprint(e.Method, " ", e.Backend, " ", e.Count))
	}
	assert.Equal(t, []string{"StopContainer beta.io 1", "StartContainer beta.io 2", "StartContainer primary 1"}, got)
	assert.Contains(t, text, "StartContainer of beta.io Internal: out of order")
}

// A reload used to give all pods of a node other ids.
func TestAChangeOfIdsWaitsForARestart(t *testing.T) {
	t.Parallel()
	p := startedProcess(t)
	sandbox, _ := p.runPod("vm", "beta.io")
	text := p.config
	p.config = filepath.Join(p.dir, "next.yaml")
	p.write("ids: native\n")
	checked := says(t, "check", "-config", p.config)
	assert.Contains(t, checked, "kubelet knows the pods of this node by their current ids")
	assert.Contains(t, checked, `ids: "native", was "prefix"   (waits for a restart)`)
	p.config = text
	p.write("ids: native\n")
	require.NoError(t, syscall.Kill(p.serving(), syscall.SIGHUP))
	var r admin.Report
	testkit.Eventually(t, "it is reloaded", func() bool { _, r = p.status(); return r.Config.Reloads > 0 })
	require.Len(t, r.Config.NeedsRestart, 1)
	assert.Contains(t, r.Config.NeedsRestart[0], "ids: native, was prefix")
	assert.Equal(t, sandbox, p.pods().Pods[0].ID)
	list, err := runtimeapi.NewRuntimeServiceClient(p.connect(p.front)).ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	require.NoError(t, err)
	assert.Equal(t, sandbox, list.GetItems()[0].GetId())
	p.write("ids: native\nlistBudget: 3s\n")
	testkit.Eventually(t, "it is reloaded again", func() bool { _, r = p.status(); return r.Config.Reloads > 1 })
	assert.Len(t, r.Config.NeedsRestart, 1, "it still waits")
}

func TestPodsFailsIfTheListIsNotComplete(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.write("listBudget: 3s\n")
	p.runtimes[0].When(testkit.Failing(status.Error(codes.Internal, "out of order"), "ListContainers"))
	p.launch()
	text, err := p.ask("pods")
	require.ErrorContains(t, err, "the pods of backend primary are missing here: out of order")
	assert.NotContains(t, text, "No pods", "there may be some")
}
