package daemon

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/settings/config"
)

// differs has what may differ between the data paths: what a client sees on our own path, and on grpc-go's. All else is
// equal, call by call. (Bounds of memory differ as well: docs/security.md.)
var differs = [][2]string{
	{"criproxy: the request is 17825797 bytes, more than the limit of 16777216; raise -max-message-bytes", "grpc: received message larger than max (17825797 vs. 16777216)"},
}

// heard is all that a client hears of a call.
type heard struct {
	Replies         []string
	Header, Trailer metadata.MD
	Code, Message   string
}

// listen makes a call with raw messages.
func (n *node) listen(method string, request proto.Message, opts ...grpc.CallOption) heard {
	n.Helper()
	cs, err := n.cc.NewStream(n.ctx(), &grpc.StreamDesc{ServerStreams: true}, method, append(opts, grpc.ForceCodecV2(codec.Raw))...)
	require.NoError(n, err)
	var h heard
	if err = cs.SendMsg(request); err == nil || errors.Is(err, io.EOF) {
		require.NoError(n, cs.CloseSend())
		for err = nil; err == nil; {
			var f codec.Frame
			if err = cs.RecvMsg(&f); err == nil {
				h.Replies = append(h.Replies, string(f.Bytes()))
			}
		}
	}
	h.Header, _ = cs.Header()
	h.Trailer = cs.Trailer()
	if !errors.Is(err, io.EOF) {
		h.Code, h.Message = status.Code(err).String(), status.Convert(err).Message()
	}
	return h
}

// A container lives and dies on the runtime named after the prefix, and much goes wrong meanwhile.
func TestBothDataPathsAnswerAlike(t *testing.T) {
	t.Parallel()
	const rt, image = "/runtime.v1.RuntimeService/", "/runtime.v1.ImageService/"
	tell := func(path string) (all []heard) {
		n := newNode(t, func(c *config.Config) { c.DataPath = path })
		n.isUp(0)
		n.isUp(1)
		hear := func(method string, request proto.Message, opts ...grpc.CallOption) {
			h := n.listen(method, request, opts...)
			for i, r := range h.Replies { // the fakes put times into statuses
				h.Replies[i] = strings.ToValidUTF8(r, "?")
			}
			all = append(all, h)
		}
		hear(rt+"Version", &runtimeapi.VersionRequest{})
		hear(rt+"Version", &runtimeapi.VersionRequest{Version: strings.Repeat("x", 3<<20)}, grpc.UseCompressor(gzip.Name))
		hear(rt+"Version", &runtimeapi.VersionRequest{Version: strings.Repeat("x", 17<<20)})
		hear(rt+"Status", &runtimeapi.StatusRequest{})
		hear(rt+"ListPodSandbox", &runtimeapi.ListPodSandboxRequest{})
		hear(rt+"ListContainers", &runtimeapi.ListContainersRequest{})
		hear(rt+"StreamContainers", &runtimeapi.StreamContainersRequest{})
		hear(rt+"StopContainer", &runtimeapi.StopContainerRequest{ContainerId: "beta.io__none"})
		hear(rt+"RemoveContainer", &runtimeapi.RemoveContainerRequest{ContainerId: "gamma.io__none"})
		hear(rt+"ContainerStatus", &runtimeapi.ContainerStatusRequest{ContainerId: "none"})
		hear(image+"PullImage", &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: "beta.io/busybox"}})
		hear(image+"ImageStatus", &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: "beta.io/busybox"}})
		hear("/runtime.v1.RuntimeService/Nonesuch", &runtimeapi.VersionRequest{})
		hear("/of.nobody.Service/Call", &runtimeapi.VersionRequest{})
		hear("/runtime.v1alpha2.RuntimeService/Version", &runtimeapi.VersionRequest{})
		n.runtimes[1].Kill()
		require.Eventually(t, func() bool { return !n.proxy.Health().Backends[1].IsUp() }, time.Minute, time.Millisecond)
		hear(rt+"ListContainers", &runtimeapi.ListContainersRequest{})
		return all
	}
	own, other := tell(config.OwnPath), tell(config.GRPCPath)
	require.Len(t, other, len(own))
	for i := range own {
		for _, d := range differs {
			if strings.Contains(own[i].Message, d[0]) {
				assert.Contains(t, other[i].Message, d[1])
				own[i].Message, other[i].Message = "", ""
			}
		}
		assert.Equal(t, own[i], other[i], "call %d", i)
	}
}

func TestThreeFailuresOfTheDataPathNameTheCure(t *testing.T) {
	var f failures
	now := time.Now()
	f.fails(now)
	f.fails(now.Add(61 * time.Second))
	f.fails(now.Add(62 * time.Second))
	assert.Zero(t, f.advice, "three, but not within a minute")
	f.fails(now.Add(63 * time.Second))
	assert.Equal(t, now.Add(63*time.Second), f.advice)
	f.fails(now.Add(64 * time.Second))
	assert.Equal(t, now.Add(63*time.Second), f.advice, "once is enough")
}

func TestAPanicCountsWhereItHappened(t *testing.T) {
	const stack = `goroutine 7 [running]:
runtime/debug.Stack()
	runtime/debug/stack.go:26 +0x5e
github.com/criproxy/criproxy/internal/base/recovery.Hook.To(0x1, 0x2, {0x3, 0x2b})
	github.com/criproxy/criproxy/internal/base/recovery/recovery.go:47 +0x46
panic({0xefd340?, 0x19d8920?})
	runtime/panic.go:860 +0x13a
runtime.panicmem(...)
	runtime/panic.go:262
github.com/criproxy/criproxy/internal/proxy/limits.(*Client).shares(0x1133b48?, 0x2145e0e50cc0?)
	github.com/criproxy/criproxy/internal/proxy/limits/shares.go:17 +0xe
github.com/criproxy/criproxy/internal/base/transport.Count({0x1133b48, 0x2145e0e50cc0})
	github.com/criproxy/criproxy/internal/base/transport/budget.go:60 +0x117
`
	assert.True(t, panickedIn(stack, "/internal/proxy/limits."))
	assert.False(t, panickedIn(stack, "/internal/base/transport."), "it only called what panicked")
}
