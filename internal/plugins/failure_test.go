package plugins_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/hook/plugin"
	"github.com/criproxy/criproxy/internal/plugins"
)

// Each case is a way in which a plugin can fail, with the error that it gets.
func TestWhateverAPluginDoesIgnoreGoesOnAndFailRefuses(t *testing.T) {
	huge := protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), make([]byte, 20<<20))
	misdeeds := []struct {
		name, says string
		answer     func(context.Context, string, []byte) ([]byte, error)
	}{
		{"says no", "says no: because (PermissionDenied)", func(context.Context, string, []byte) ([]byte, error) {
			return nil, status.Error(codes.PermissionDenied, "because")
		}},
		{"never answers", "did not answer within 300ms", func(ctx context.Context, _ string, _ []byte) ([]byte, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}},
		{"answers garbage", "gave an answer of the wrong shape", func(context.Context, string, []byte) ([]byte, error) { return []byte("garbage, and no message"), nil }},
		{"answers text that is none", "gave an answer of the wrong shape", func(context.Context, string, []byte) ([]byte, error) {
			return entry(2, "note", "\xff\xfe").Marshal(), nil
		}},
		{"answers 20 MiB", "gave an answer that is too large", func(context.Context, string, []byte) ([]byte, error) {
			return huge, nil
		}},
		{"has no such method", "has no method for this point", func(context.Context, string, []byte) ([]byte, error) {
			return nil, status.Error(codes.Unimplemented, "unknown service")
		}},
	}
	for _, m := range misdeeds {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if m.name == "never answers" {
				w.timeout = 300 * time.Millisecond
			}
			w.raw("ignore", "Ignore", []string{"PreRunPodSandbox"}, m.answer)
			w.run(podConfig("web"))
			asked := happened[plugins.Asked](w)
			require.Len(t, asked, 1)
			assert.ErrorContains(t, asked[0].Err, m.says)
			got := w.runtime.Calls("RunPodSandbox")[0].Request.(*runtimeapi.RunPodSandboxRequest)
			assertProto(t, podConfig("web"), got.GetConfig())

			w.raw("refuse", "Fail", []string{"PreRunPodSandbox"}, m.answer)
			_, err := w.client.RunPodSandbox(w.ctx(), &runtimeapi.RunPodSandboxRequest{Config: podConfig("second")})
			assert.ErrorContains(t, err, "criproxy: RunPodSandbox: refused at PreRunPodSandbox: plugin refuse.json "+m.says)
			assert.Len(t, w.runtime.Calls("RunPodSandbox"), 1)
		})
	}
}

// A plugin that accepts connections and never answers is worse than none.
func TestSilentPluginIsWaitedForUntilItsTimeout(t *testing.T) {
	w := newWorld(t)
	l, err := net.Listen("unix", filepath.Join(w.dir, "mute.sock"))
	require.NoError(t, err)
	defer l.Close()
	w.file("mute", fmt.Sprintf(`{"remote-endpoint": %q, "runtime-hooks": ["PreRunPodSandbox"], "timeout": "50ms"}`, l.Addr()))
	w.until("it is there", func() bool { return w.state("mute").Name != "" })
	w.run(podConfig("web"))
	asked := happened[plugins.Asked](w)
	require.Len(t, asked, 1)
	assert.ErrorContains(t, asked[0].Err, "did not answer within 50ms")
}

func TestAPluginThatPanicsLives(t *testing.T) {
	w := newWorld(t)
	w.plug(plugin.Plugin{Name: "panic", PreRunPodSandbox: func(_ context.Context, p *plugin.Pod) (*plugin.PodAnswer, error) {
		panic("no pod of mine")
	}})
	w.run(podConfig("web"))
	w.run(podConfig("second"))
	for _, e := range happened[plugins.Asked](w) {
		assert.ErrorContains(t, e.Err, "the plugin panicked: no pod of mine")
	}
}

// If a client leaves while a plugin is asked, that is no failure of the plugin.
func TestAClientThatLeavesIsNoFailureOfThePlugin(t *testing.T) {
	w := newWorld(t)
	began := make(chan struct{})
	w.plug(plugin.Plugin{Name: "slow", Timeout: time.Minute, PreRunPodSandbox: func(ctx context.Context, _ *plugin.Pod) (*plugin.PodAnswer, error) {
		close(began)
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	ctx, leave := context.WithCancel(t.Context())
	go func() { <-began; leave() }()
	_, err := w.client.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: podConfig("web")})
	assert.Equal(t, codes.Canceled, status.Code(err))
	assert.Empty(t, happened[plugins.Asked](w))
	assert.Empty(t, w.runtime.Calls("RunPodSandbox"))
}

func TestTheLabelSkipsAPodAndItsContainers(t *testing.T) {
	w := newWorld(t)
	no := func(context.Context, string, []byte) ([]byte, error) { return nil, errors.New("no") }
	w.raw("no", "Fail", []string{"PreRunPodSandbox", "PreCreateContainer", "PostStopPodSandbox"}, no)
	config := podConfig("web")
	config.Annotations["runtimeproxy.koordinator.sh/skip-hookserver"] = "true"
	_, err := w.client.RunPodSandbox(w.ctx(), &runtimeapi.RunPodSandboxRequest{Config: config})
	require.Error(t, err, "an annotation is no label")
	config.Labels["runtimeproxy.koordinator.sh/skip-hookserver"] = "yes"
	_, err = w.client.RunPodSandbox(w.ctx(), &runtimeapi.RunPodSandboxRequest{Config: config})
	require.Error(t, err, "another value is none either")
	config.Labels["runtimeproxy.koordinator.sh/skip-hookserver"] = "true"
	pod := w.run(config)
	_, err = w.create(pod, config, containerConfig())
	require.NoError(t, err)
	_, err = w.client.StopPodSandbox(w.ctx(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod})
	require.NoError(t, err)
	assert.Len(t, happened[plugins.Asked](w), 2)
}

// The folder changes and plugins come and go while calls are under way. No call fails, and a plugin
// is either asked about a call or not, never halfway.
func TestTheFolderChangesWhileCallsRun(t *testing.T) {
	w := newWorld(t)
	w.plug(annotate("stays", "tier", "x"))
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				_, err := w.client.RunPodSandbox(w.ctx(), &runtimeapi.RunPodSandboxRequest{Config: podConfig(fmt.Sprint("web", g, "-", i))})
				assert.NoError(t, err)
			}
		})
	}
	for i := range 60 {
		w.file("comes", fmt.Sprintf(`{"remote-endpoint": %q, "runtime-hooks": ["PreRunPodSandbox"], "timeout": %d}`, filepath.Join(w.dir, "stays.sock"), 1+i%9))
		time.Sleep(time.Duration(i%3) * time.Millisecond) // to meet calls in different places; not to wait for something
		if i%2 == 0 {
			w.until("it is loaded", func() bool { return w.state("comes").State == "ready" })
		}
		require.NoError(t, os.Remove(filepath.Join(w.cfg.Folder, "comes.json")))
	}
	stop()
	wg.Wait()
	for _, e := range happened[plugins.Asked](w) {
		if e.Plugin == "stays.json" {
			assert.NoError(t, e.Err)
		} else if e.Err != nil {
			assert.ErrorContains(t, e.Err, "has been removed")
		}
	}
	for _, c := range w.runtime.Calls("RunPodSandbox") {
		assert.Equal(t, "x", c.Request.(*runtimeapi.RunPodSandboxRequest).GetConfig().GetAnnotations()["tier"])
	}
}
