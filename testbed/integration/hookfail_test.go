package integration

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/hook/plugin"
)

func TestAPluginRefusesARealPod(t *testing.T) {
	eachHooked(t, func(t *testing.T, h *hooked, s *side) {
		unplug := h.plug(t, plugin.Plugin{Name: "quota", Fail: true, PreRunPodSandbox: func(_ context.Context, p *plugin.Pod) (*plugin.PodAnswer, error) {
			if p.GetLabels()["greedy"] != "" {
				return nil, status.Error(codes.ResourceExhausted, "the node is full")
			}
			return nil, nil
		}})
		runtime, _ := kubelet(t, h.socket)
		config := s.choose(s.PodConfig("greedy"))
		config.Labels["greedy"] = "yes"
		_, err := runtime.RunPodSandbox(t.Context(), config, "")
		assert.Equal(t, codes.FailedPrecondition, status.Code(err))
		assert.ErrorContains(t, err, "criproxy: RunPodSandbox: refused at PreRunPodSandbox: plugin quota.json says no: the node is full (ResourceExhausted)")
		assert.Empty(t, s.pods(t), "the runtime has heard nothing of it")
		runHooked(t, h, s, s.choose(s.PodConfig("modest")), nil)

		unplug()
		runHooked(t, h, s, config, nil)
	})
}

// misdeeds are plugins that misbehave, each on its own socket.
func misdeeds(t *testing.T) map[string]string {
	t.Helper()
	answering := func(answer func() []byte) string {
		return serve(t, func(_ string, stream grpc.ServerStream) error {
			if err := stream.RecvMsg(&codec.Frame{}); err != nil {
				return err
			}
			return stream.SendMsg(codec.NewFrame(answer()))
		})
	}
	// The cgroup parent, 3 in both answers: it would show.
	moved := []byte("\x1a\x09/nowhere!")
	crashing, err := net.Listen("unix", filepath.Join(folder(t), "crash.sock"))
	require.NoError(t, err)
	t.Cleanup(func() { crashing.Close() })
	go func() {
		for {
			nc, err := crashing.Accept()
			if err != nil {
				return
			}
			_, _ = nc.Read(make([]byte, 1))
			_ = nc.Close()
		}
	}()
	return map[string]string{
		"hung": serve(t, func(_ string, stream grpc.ServerStream) error {
			<-stream.Context().Done()
			return stream.Context().Err()
		}),
		"slow":    answering(func() []byte { time.Sleep(time.Second); return moved }), // twice its timeout
		"crashed": crashing.Addr().String(),
		"gone":    filepath.Join(folder(t), "gone.sock"),
		"garbage": answering(func() []byte { return append(moved, "garbage"...) }),
		"no-text": answering(func() []byte { return append(moved, "\x0a\x05\x0a\x01\xff\x12\x00"...) }),
		"huge":    answering(func() []byte { return append(moved, make([]byte, 20<<20)...) }),
	}
}

func TestIgnoreToleratesPluginFailuresFailRefuses(t *testing.T) {
	eachHooked(t, func(t *testing.T, h *hooked, s *side) {
		h.plug(t, plugin.Plugin{Name: "zz-good", Fail: true, PreCreateContainer: func(_ context.Context, c *plugin.Container) (*plugin.ContainerAnswer, error) {
			a := plugin.Echo(c)
			a.ContainerResources.CpuShares = 77
			return a, nil
		}})
		bad := misdeeds(t)
		for name, socket := range bad {
			h.file(t, name, socket, "Ignore", `"PreRunPodSandbox", "PreCreateContainer", "PostStartContainer"`)
		}
		for name := range bad {
			eventually(t, func() error {
				if h.state(t, name).Policy != "Ignore" {
					return assert.AnError
				}
				return nil
			})
		}
		_, id := runHooked(t, h, s, s.choose(s.PodConfig("survivor")), nil)
		m := madeOf(t, s, s.bare(t, id))
		assert.EqualValues(t, 77, m.RuntimeSpec.Linux.Resources.CPU.Shares, "the one that is well was asked")
		assert.NotContains(t, cgroupOf(t, m.Pid), "nowhere")
		for name := range bad {
			for _, point := range h.state(t, name).Points {
				assert.EqualValues(t, 1, point.Calls, "%s at %s", name, point.Name)
				assert.EqualValues(t, 1, point.Failed, "%s at %s", name, point.Name)
				assert.NotEmpty(t, point.LastError, "%s at %s", name, point.Name)
			}
		}

		runtime, _ := kubelet(t, h.socket)
		before := s.pods(t)
		for name, socket := range bad {
			h.file(t, name, socket, "Fail", `"PreRunPodSandbox"`)
			eventually(t, func() error {
				if h.state(t, name).Policy != "Fail" {
					return assert.AnError
				}
				return nil
			})
			_, err := runtime.RunPodSandbox(t.Context(), s.choose(s.PodConfig("refused")), "")
			assert.Equal(t, codes.Unavailable, status.Code(err), name)
			assert.ErrorContains(t, err, "criproxy: RunPodSandbox: refused at PreRunPodSandbox: plugin "+name+".json ")
			h.file(t, name, socket, "Fail", "")
			eventually(t, func() error {
				if len(h.state(t, name).Points) > 0 {
					return assert.AnError
				}
				return nil
			})
		}
		assert.Len(t, s.pods(t), len(before), "the runtime has heard nothing of them")
	})
}
