package plugins_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/hook/plugin"
	"github.com/criproxy/criproxy/internal/plugins"
)

// Each test here is named after a weakness of KoordRuntimeProxy.

func annotate(name, key, value string) plugin.Plugin {
	return plugin.Plugin{Name: name, PreRunPodSandbox: func(_ context.Context, p *plugin.Pod) (*plugin.PodAnswer, error) {
		a := plugin.EchoPod(p)
		a.Annotations["seen-by-"+name] = a.Annotations[key]
		a.Annotations[key] = value
		return a, nil
	}}
}

func TestNoChaining(t *testing.T) {
	w := newWorld(t)
	w.plug(annotate("b", "tier", "second"))
	w.plug(annotate("a", "tier", "first"))
	for i := range 20 {
		w.run(podConfig(fmt.Sprint("web", i)))
	}
	for _, c := range w.runtime.Calls("RunPodSandbox") {
		got := c.Request.(*runtimeapi.RunPodSandboxRequest).GetConfig().GetAnnotations()
		assert.Equal(t, map[string]string{"note": "pod's", "tier": "second", "seen-by-a": "", "seen-by-b": "first"}, got)
	}
	conflicts := happened[plugins.Conflict](w)
	require.Len(t, conflicts, 20)
	assert.Equal(t, plugins.Conflict{Point: "PreRunPodSandbox", Field: `annotations["tier"]`, First: "a.json", Second: "b.json"}, conflicts[0])
}

func TestNoTimeout(t *testing.T) {
	w := newWorld(t)
	hung := make(chan struct{})
	left := make(chan time.Duration, 1)
	p := plugin.Plugin{Name: "hung", Timeout: 20 * time.Millisecond, PreRunPodSandbox: func(ctx context.Context, pod *plugin.Pod) (*plugin.PodAnswer, error) {
		if pod.GetPodMeta().GetName() == "deadline" {
			deadline, _ := ctx.Deadline()
			left <- time.Until(deadline)
			return nil, nil
		}
		<-hung
		return nil, nil
	}}
	defer close(hung)
	w.plug(p)
	w.run(podConfig("ignored"))
	assert.Len(t, w.runtime.Calls("RunPodSandbox"), 1, "the runtime is called all the same")

	// With a very long time-out, half of the call's own deadline is left for the runtime.
	w.file("hung", fmt.Sprintf(`{"remote-endpoint": %q, "runtime-hooks": ["PreRunPodSandbox"], "timeout": "1m"}`, filepath.Join(w.dir, "hung.sock")))
	w.until("it has a minute", func() bool { return w.state("hung").Timeout == "1m0s" })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := w.client.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: podConfig("deadline")})
	require.NoError(t, err)
	assert.LessOrEqual(t, <-left, patience/2)

	w.file("hung", fmt.Sprintf(`{"remote-endpoint": %q, "runtime-hooks": ["PreRunPodSandbox"], "timeout": 0.02, "failure-policy": "Fail"}`, filepath.Join(w.dir, "hung.sock")))
	w.until("it fails", func() bool { return w.state("hung").Policy == "Fail" })
	_, err = w.client.RunPodSandbox(w.ctx(), &runtimeapi.RunPodSandboxRequest{Config: podConfig("refused")})
	assert.Equal(t, "criproxy: RunPodSandbox: refused at PreRunPodSandbox: plugin hung.json did not answer within 20ms", status.Convert(err).Message())
	assert.Equal(t, codes.Unavailable, status.Code(err))
	assert.Len(t, w.runtime.Calls("RunPodSandbox"), 2, "the runtime has heard nothing of it")
	assert.EqualValues(t, 2, w.state("hung").Points[0].TimedOut)
}

func TestSlowRemoval(t *testing.T) {
	w := newWorld(t)
	no := plugin.Plugin{Name: "no", Fail: true, PreRunPodSandbox: func(context.Context, *plugin.Pod) (*plugin.PodAnswer, error) {
		return nil, status.Error(codes.Aborted, "no")
	}}
	w.plug(no)
	_, err := w.client.RunPodSandbox(w.ctx(), &runtimeapi.RunPodSandboxRequest{Config: podConfig("web")})
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
	require.NoError(t, os.Remove(filepath.Join(w.cfg.Folder, "no.json")))
	w.until("it is gone", func() bool { return len(w.plugins.State().Plugins) == 0 })
	w.run(podConfig("web"))
}

// A call finishes with the plugins that it began with.
func TestARemovedFileRefusesNoCallUnderWay(t *testing.T) {
	w := newWorld(t)
	asked, answer := make(chan bool), make(chan bool)
	w.plug(plugin.Plugin{Name: "first", PreRunPodSandbox: func(context.Context, *plugin.Pod) (*plugin.PodAnswer, error) {
		asked <- true
		<-answer
		return nil, nil
	}})
	second := annotate("second", "tier", "x")
	second.Fail = true
	w.plug(second)
	done := make(chan error)
	go func() {
		_, err := w.client.RunPodSandbox(w.ctx(), &runtimeapi.RunPodSandboxRequest{Config: podConfig("web")})
		done <- err
	}()
	<-asked
	require.NoError(t, os.Remove(filepath.Join(w.cfg.Folder, "second.json")))
	w.until("it is gone", func() bool { return len(w.plugins.State().Plugins) == 1 })
	answer <- true
	require.NoError(t, <-done)
	got := w.runtime.Calls("RunPodSandbox")[0].Request.(*runtimeapi.RunPodSandboxRequest).GetConfig().GetAnnotations()
	assert.Equal(t, "x", got["tier"])
}

// Crashes 1 and 9: a request about an unknown object went on in spite of Fail.
func TestCrashOnAnUnknownSandbox(t *testing.T) {
	w := newWorld(t)
	behind := runtimeapi.NewRuntimeServiceClient(w.wire)
	config := podConfig("behind")
	ran, err := behind.RunPodSandbox(w.ctx(), &runtimeapi.RunPodSandboxRequest{Config: config})
	require.NoError(t, err)
	_, err = w.create(ran.PodSandboxId, config, containerConfig())
	require.NoError(t, err, "without a plugin")

	passed := make(chan *plugin.Container, 10)
	w.plug(plugin.Plugin{Name: "look", Fail: true, PreCreateContainer: func(_ context.Context, c *plugin.Container) (*plugin.ContainerAnswer, error) {
		passed <- c
		return nil, nil
	}})
	second, err := behind.RunPodSandbox(w.ctx(), &runtimeapi.RunPodSandboxRequest{Config: podConfig("second")})
	require.NoError(t, err)
	_, err = w.create(second.PodSandboxId, podConfig("second"), containerConfig())
	require.NoError(t, err)
	c := <-passed
	assert.Equal(t, "uid-of-second", c.GetPodMeta().GetUid())
	assert.EqualValues(t, 2, c.GetPodMeta().GetAttempt())
	assert.Equal(t, map[string]string{"app": "second"}, c.GetPodLabels())
	assert.EqualValues(t, 20, c.GetPodResources().GetCpuShares())

	third, err := behind.RunPodSandbox(w.ctx(), &runtimeapi.RunPodSandboxRequest{Config: podConfig("third")})
	require.NoError(t, err)
	w.wire.failing(func(method string) error {
		if method == "PodSandboxStatus" {
			return status.Error(codes.Internal, "out of order")
		}
		return nil
	})
	_, before := w.wire.last("CreateContainer")
	_, err = w.create(third.PodSandboxId, podConfig("third"), containerConfig())
	assert.Equal(t, "criproxy: CreateContainer: plugin look.json must be asked, but criproxy cannot find the pod or container of the call: out of order", status.Convert(err).Message())
	assert.Equal(t, codes.Unavailable, status.Code(err))
	_, after := w.wire.last("CreateContainer")
	assert.Equal(t, before, after, "the runtime has heard nothing of it")
	_, err = w.create("no-such-pod", podConfig("none"), containerConfig())
	assert.Equal(t, codes.NotFound, status.Code(mustFail(t, w, err)))
	assert.Empty(t, passed)
}

func mustFail(t testing.TB, w *world, err error) error {
	require.Error(t, err)
	if status.Code(err) != codes.NotFound { // statuses still fail
		w.wire.failing(nil)
		_, err = w.create("no-such-pod", podConfig("none"), containerConfig())
	}
	return err
}

// Crash 2.
func TestCrashOnAMalformedFile(t *testing.T) {
	w := newWorld(t)
	for i, content := range []string{"", "{", "null", "[]", `"x"`, `{}`, `{"remote-endpoint": 5}`, `{"remote-endpoint": "relative.sock"}`, `{"remote-endpoint": "/x", "timeout": "soon"}`, "\xff\xfe", `{"remote-endpoint": "/x", "runtime-hooks": {}}`, `{"remote-endpoint": "/x"} {}`} {
		name := fmt.Sprint("bad", i)
		w.file(name, content)
		w.until("it is reported: "+content, func() bool { s := w.state(name); return s.State == "broken" && s.Error != "" })
	}
	w.run(podConfig("web"))

	w.plug(annotate("good", "tier", "x"))
	// Written in place, not renamed: the same inode is half written.
	path := filepath.Join(w.cfg.Folder, "good.json")
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, whole[:len(whole)/2], 0o644))
	w.until("it is reported", func() bool { return w.state("good").Error != "" })
	assert.Equal(t, "ready", w.state("good").State)
	w.run(podConfig("kept"))
	got := w.runtime.Calls("RunPodSandbox")[1].Request.(*runtimeapi.RunPodSandboxRequest).GetConfig().GetAnnotations()
	assert.Equal(t, "x", got["tier"], "what the file said before still holds")
	require.NoError(t, os.WriteFile(path, whole, 0o644))
	w.until("it is good again", func() bool { return w.state("good").Error == "" })
}

// Crash 3.
func TestCrashWithoutALinuxPart(t *testing.T) {
	w := newWorld(t)
	w.plug(plugin.Plugin{Name: "x", Fail: true,
		PreRunPodSandbox: func(context.Context, *plugin.Pod) (*plugin.PodAnswer, error) {
			return &plugin.PodAnswer{CgroupParent: "/moved"}, nil
		},
		PreCreateContainer: func(_ context.Context, c *plugin.Container) (*plugin.ContainerAnswer, error) {
			return &plugin.ContainerAnswer{PodCgroupParent: "/moved", ContainerResources: &plugin.Resources{CpuShares: 5}}, nil
		}})
	config := podConfig("bare")
	config.Linux, config.Labels, config.Annotations = nil, nil, nil
	pod := w.run(config)
	_, err := w.create(pod, config, &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Image: &runtimeapi.ImageSpec{Image: "busybox"}})
	require.NoError(t, err)
	assert.Equal(t, "/moved", w.runtime.Calls("RunPodSandbox")[0].Request.(*runtimeapi.RunPodSandboxRequest).GetConfig().GetLinux().GetCgroupParent())
	made := w.runtime.Calls("CreateContainer")[0].Request.(*runtimeapi.CreateContainerRequest)
	assert.Equal(t, "/moved", made.GetSandboxConfig().GetLinux().GetCgroupParent())
	assert.EqualValues(t, 5, made.GetConfig().GetLinux().GetResources().GetCpuShares())

	// An empty request.
	_, err = w.client.RunPodSandbox(w.ctx(), &runtimeapi.RunPodSandboxRequest{})
	assert.Error(t, err, "the runtime says no, and no process has crashed")
	_, err = w.client.CreateContainer(w.ctx(), &runtimeapi.CreateContainerRequest{})
	assert.Error(t, err)
	_, err = w.client.StartContainer(w.ctx(), &runtimeapi.StartContainerRequest{})
	assert.Error(t, err)
}

// Crash 4.
func TestCrashOfConcurrentUpdates(t *testing.T) {
	w := newWorld(t)
	w.plug(echo("echo"))
	config := podConfig("web")
	pod := w.run(config)
	id, err := w.create(pod, config, containerConfig())
	require.NoError(t, err)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 10 {
				_, err := w.client.UpdateContainerResources(w.ctx(), &runtimeapi.UpdateContainerResourcesRequest{ContainerId: id,
					Linux: &runtimeapi.LinuxContainerResources{CpuShares: int64(2 + i), Unified: map[string]string{fmt.Sprint(i, j): "x"}}})
				assert.NoError(t, err)
			}
		})
	}
	wg.Wait()
}

// Crash 6, and the leak of stored objects.
func TestStoreLeakAndForgettingOnAFailedStop(t *testing.T) {
	w := newWorld(t)
	var stops atomic.Int32
	var codesTold sync.Map
	w.plug(plugin.Plugin{Name: "post", PostStopContainer: func(ctx context.Context, c *plugin.Container) (*plugin.ContainerAnswer, error) {
		codesTold.Store(stops.Add(1), plugin.CallOf(ctx).Code+" "+plugin.CallOf(ctx).Message)
		return nil, nil
	}})
	config := podConfig("web")
	pod := w.run(config)
	id, err := w.create(pod, config, containerConfig())
	require.NoError(t, err)
	w.wire.failing(func(method string) error {
		if method == "StopContainer" {
			return status.Error(codes.Internal, "cannot be stopped: é")
		}
		return nil
	})
	_, err = w.client.StopContainer(w.ctx(), &runtimeapi.StopContainerRequest{ContainerId: id})
	require.Error(t, err)
	w.wire.failing(nil)
	_, err = w.client.StopContainer(w.ctx(), &runtimeapi.StopContainerRequest{ContainerId: id})
	require.NoError(t, err)
	first, _ := codesTold.Load(int32(1))
	second, _ := codesTold.Load(int32(2))
	assert.Equal(t, "Internal cannot be stopped: ?", first)
	assert.Equal(t, "OK ", second, "the plugin learns of the second attempt, and of its success")

	known := func() map[string]int { return w.plugins.State().Known }
	assert.Equal(t, map[string]int{"sandbox": 1, "container": 1}, known())
	w.wire.failing(func(string) error { return status.Error(codes.Internal, "no") })
	_, err = w.client.RemoveContainer(w.ctx(), &runtimeapi.RemoveContainerRequest{ContainerId: id})
	require.Error(t, err)
	assert.Equal(t, 1, known()["container"])
	w.wire.failing(nil)
	_, err = w.client.RemovePodSandbox(w.ctx(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod})
	require.NoError(t, err)
	assert.Empty(t, known(), "with the pod goes what lies in it")
}

// Crash 7: a plugin did not learn that a start had failed.
func TestPostHooksFiredThoughTheCallFailed(t *testing.T) {
	w := newWorld(t)
	var mu sync.Mutex
	var passed []string
	post := func(ctx context.Context, _ *plugin.Container) (*plugin.ContainerAnswer, error) {
		mu.Lock()
		defer mu.Unlock()
		of := plugin.CallOf(ctx)
		passed = append(passed, of.Point+" "+of.Code+" "+of.Message)
		return nil, status.Error(codes.Internal, "after the call, this refuses nothing")
	}
	w.plug(plugin.Plugin{Name: "post", Fail: true, PostStartContainer: post, PostStopContainer: post, PostRemoveContainer: post})
	config := podConfig("web")
	id, err := w.create(w.run(config), config, containerConfig())
	require.NoError(t, err)
	w.wire.failing(func(method string) error {
		if method == "StartContainer" {
			return status.Error(codes.FailedPrecondition, "no such command")
		}
		return nil
	})
	_, err = w.client.StartContainer(w.ctx(), &runtimeapi.StartContainerRequest{ContainerId: id})
	assert.Equal(t, "rpc error: code = FailedPrecondition desc = no such command", err.Error(), "the runtime's own words")
	w.wire.failing(nil)
	_, err = w.client.StartContainer(w.ctx(), &runtimeapi.StartContainerRequest{ContainerId: id})
	require.NoError(t, err)
	_, err = w.client.RemoveContainer(w.ctx(), &runtimeapi.RemoveContainerRequest{ContainerId: id})
	require.NoError(t, err)
	assert.Equal(t, []string{"PostStartContainer FailedPrecondition no such command", "PostStartContainer OK ", "PostRemoveContainer OK "}, passed)
}

// Crash 8: kubelet may stop a pod several times, and plugins were only called the first time.
func TestTheSecondStopOfAPodHadNoHook(t *testing.T) {
	w := newWorld(t)
	stops := make(chan *plugin.Pod, 3)
	w.plug(plugin.Plugin{Name: "post", PostStopPodSandbox: func(_ context.Context, p *plugin.Pod) (*plugin.PodAnswer, error) {
		stops <- p
		return nil, nil
	}})
	pod := w.run(podConfig("web"))
	for range 3 {
		_, err := w.client.StopPodSandbox(w.ctx(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod})
		require.NoError(t, err)
		assert.Equal(t, "/kubepods/web", (<-stops).GetCgroupParent())
	}
}

// A call that was refused or failed was remembered as if it had succeeded.
func TestWhatWasRefusedIsNotRemembered(t *testing.T) {
	w := newWorld(t)
	got := make(chan int64, 10)
	w.plug(plugin.Plugin{Name: "look", Fail: true, PreUpdateContainerResources: func(_ context.Context, c *plugin.Container) (*plugin.ContainerAnswer, error) {
		got <- c.GetContainerResources().GetMemoryLimitInBytes()
		if c.GetContainerResources().GetMemoryLimitInBytes() > 1<<30 {
			return nil, status.Error(codes.ResourceExhausted, "too much")
		}
		return nil, nil
	}})
	config := podConfig("web")
	id, err := w.create(w.run(config), config, containerConfig())
	require.NoError(t, err)
	update := func(r *runtimeapi.LinuxContainerResources) error {
		_, err := w.client.UpdateContainerResources(w.ctx(), &runtimeapi.UpdateContainerResourcesRequest{ContainerId: id, Linux: r})
		return err
	}
	require.Error(t, update(&runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 2 << 30}))
	w.wire.failing(func(string) error { return status.Error(codes.Internal, "out of order") })
	require.Error(t, update(&runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 3 << 20}))
	w.wire.failing(nil)
	require.NoError(t, update(&runtimeapi.LinuxContainerResources{CpuShares: 5}))
	assert.Equal(t, []int64{2 << 30, 3 << 20, 1 << 20}, []int64{<-got, <-got, <-got})
}

// After a restart, a plugin's changes of a container were dropped, because the resources of the
// container were not known.
func TestLossyFailover(t *testing.T) {
	w := newWorld(t)
	w.plug(echo("echo"))
	config := podConfig("web")
	pod := w.run(config)
	id, err := w.create(pod, config, containerConfig())
	require.NoError(t, err)
	_, err = w.client.UpdateContainerResources(w.ctx(), &runtimeapi.UpdateContainerResourcesRequest{ContainerId: id, Linux: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 4 << 20}})
	require.NoError(t, err)

	w.stop()
	w.start()
	w.until("what there is has been looked up", func() bool { return len(w.plugins.State().Known) == 2 })
	got := make(chan *plugin.Container, 1)
	w.plug(plugin.Plugin{Name: "second", PreUpdateContainerResources: func(_ context.Context, c *plugin.Container) (*plugin.ContainerAnswer, error) {
		got <- c
		a := plugin.Echo(c)
		a.ContainerResources.CpuShares, a.ContainerResources.CpusetCpus = 999, "7"
		return a, nil
	}})
	_, err = w.client.UpdateContainerResources(w.ctx(), &runtimeapi.UpdateContainerResourcesRequest{ContainerId: id, Linux: &runtimeapi.LinuxContainerResources{CpuQuota: 1000}})
	require.NoError(t, err)
	c := <-got
	assert.Equal(t, "/kubepods/web", c.GetPodCgroupParent())
	assert.Equal(t, map[string]string{"app": "web"}, c.GetPodLabels())
	assert.Equal(t, map[string]string{"note": "pod's"}, c.GetPodAnnotations())
	assert.Equal(t, map[string]string{"note": "container's"}, c.GetContainerAnnotations())
	assert.Equal(t, map[string]string{"Z": "last", "A": "first", "M": "x=y"}, c.GetContainerEnvs())
	assert.EqualValues(t, 4<<20, c.GetContainerResources().GetMemoryLimitInBytes(), "with what was changed since it was made")
	assert.EqualValues(t, 900, c.GetContainerResources().GetOomScoreAdj())
	calls := w.runtime.Calls("UpdateContainerResources")
	assertProto(t, &runtimeapi.LinuxContainerResources{CpuQuota: 1000, CpuShares: 999, CpusetCpus: "7"},
		calls[len(calls)-1].Request.(*runtimeapi.UpdateContainerResourcesRequest).GetLinux())
}

func Test4MiB(t *testing.T) {
	w := newWorld(t)
	w.plug(plugin.Plugin{Name: "large", Fail: true, PreRunPodSandbox: func(_ context.Context, p *plugin.Pod) (*plugin.PodAnswer, error) {
		a := plugin.EchoPod(p)
		a.Annotations["small"], a.Annotations["again"] = "x", a.Annotations["large"][:1<<20]
		return a, nil
	}})
	config := podConfig("web")
	config.Annotations["large"] = strings.Repeat("x", 5<<20)
	w.run(config)
	got := w.runtime.Calls("RunPodSandbox")[0].Request.(*runtimeapi.RunPodSandboxRequest).GetConfig().GetAnnotations()
	assert.Equal(t, "x", got["small"])
	assert.Len(t, got["large"], 5<<20)
	assert.Len(t, got["again"], 1<<20)
	assert.Equal(t, strings.Repeat("x", 200)+"... (1048576 bytes)", happened[plugins.Asked](w)[0].Changes[0].New, "the log has the beginning of a long value")
}

func TestMetadataDropped(t *testing.T) {
	w := newWorld(t)
	got := make(chan metadata.MD, 1)
	w.plug(plugin.Plugin{Name: "meta", PreRunPodSandbox: func(ctx context.Context, _ *plugin.Pod) (*plugin.PodAnswer, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		got <- md
		return nil, nil
	}})
	ctx := metadata.AppendToOutgoingContext(w.ctx(), "traceparent", "00-1-2-01", "criproxy-code", "OK", "criproxy-id", "forged")
	_, err := w.client.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: podConfig("web")})
	require.NoError(t, err)
	md := <-got
	assert.Equal(t, []string{"00-1-2-01"}, md["traceparent"])
	assert.Equal(t, []string{"PreRunPodSandbox"}, md["criproxy-point"])
	assert.Empty(t, md["criproxy-code"], "that is ours to say")
	assert.Empty(t, md["criproxy-id"])
	assert.Equal(t, []string{"00-1-2-01"}, w.runtime.Calls("RunPodSandbox")[0].Metadata["traceparent"])
}

func TestEnvOrder(t *testing.T) {
	w := newWorld(t)
	w.plug(plugin.Plugin{Name: "env", PreCreateContainer: func(_ context.Context, c *plugin.Container) (*plugin.ContainerAnswer, error) {
		a := plugin.Echo(c)
		a.ContainerEnvs["NEW"] = "1"
		return a, nil
	}})
	config := podConfig("web")
	pod := w.run(config)
	c := containerConfig()
	c.Envs = nil
	for i := range 100 {
		c.Envs = append(c.Envs, &runtimeapi.KeyValue{Key: fmt.Sprint("K", i*7%100), Value: []byte{byte('a' + i%26)}})
	}
	c.Envs = append(c.Envs, &runtimeapi.KeyValue{Key: "K3", Value: []byte("twice")}, &runtimeapi.KeyValue{Key: "BIN", Value: []byte{0xff, 0}})
	_, err := w.create(pod, config, c)
	require.NoError(t, err)
	got := w.runtime.Calls("CreateContainer")[0].Request.(*runtimeapi.CreateContainerRequest).GetConfig().GetEnvs()
	require.Len(t, got, len(c.Envs)+1)
	for i, kv := range c.Envs {
		assertProto(t, kv, got[i])
	}
	assertProto(t, &runtimeapi.KeyValue{Key: "NEW", Value: []byte("1")}, got[len(c.Envs)])
	var left []string
	for _, e := range happened[plugins.Asked](w) {
		left = append(left, e.LeftOut...)
	}
	assert.Equal(t, []string{`container_envs["BIN"]`}, left)
}

// A plugin that had been down for long was asked again only after minutes.
func TestReconnectAfterALongOutage(t *testing.T) {
	w := newWorld(t)
	p := annotate("back", "tier", "x")
	unplug := w.plug(p)
	unplug()
	w.file("back", fmt.Sprintf(`{"remote-endpoint": %q, "runtime-hooks": ["PreRunPodSandbox"]}`, filepath.Join(w.dir, "back.sock")))
	w.until("it is down", func() bool { return w.state("back").State == "down" })
	for i := range 5 {
		w.run(podConfig(fmt.Sprint("away", i)))
	}
	assert.EqualValues(t, 5, w.state("back").Points[0].Failed)
	stop := background(t, func(ctx context.Context) error {
		p.Folder, p.Socket = t.TempDir(), filepath.Join(w.dir, "back.sock")
		return p.Run(ctx)
	})
	defer stop()
	w.until("the plugin listens", func() bool {
		nc, err := net.Dial("unix", filepath.Join(w.dir, "back.sock"))
		if err == nil {
			nc.Close()
		}
		return err == nil
	})
	w.run(podConfig("web")) // the very next call
	assert.EqualValues(t, 5, w.state("back").Points[0].Failed)
	calls := w.runtime.Calls("RunPodSandbox")
	assert.Equal(t, "x", calls[len(calls)-1].Request.(*runtimeapi.RunPodSandboxRequest).GetConfig().GetAnnotations()["tier"])
}
