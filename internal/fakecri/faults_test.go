package fakecri_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/fakecri"
)

// failing returns a fault of calls whose method ends in suffix.
func failing(suffix string) fakecri.Fault {
	return func(_ context.Context, method string, _ any) error {
		if strings.HasSuffix(method, suffix) {
			return status.Error(codes.Unavailable, "injected")
		}
		return nil
	}
}

func TestAFaultBeforeTheCallKeepsItFromHappening(t *testing.T) {
	c := start(t, fakecri.Config{})
	c.rt.Fault(failing("/RunPodSandbox"))
	_, err := c.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: podConfig("web")})
	assert.Equal(t, status.Error(codes.Unavailable, "injected").Error(), err.Error())
	assert.Empty(t, c.rt.Pods())
	c.pull("busybox")
	c.rt.Fault(nil)
	c.run("web")
}

func TestAFaultAfterTheCallLosesItsReply(t *testing.T) {
	c := start(t, fakecri.Config{})
	c.rt.FaultAfter(failing("/RunPodSandbox"))
	_, err := c.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: podConfig("web")})
	assertCode(t, codes.Unavailable, err)
	assert.Len(t, c.rt.Pods(), 1)
}

func TestAFaultMayBlockAndSeesTheRequest(t *testing.T) {
	c := start(t, fakecri.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	c.rt.Fault(func(ctx context.Context, method string, request any) error {
		assert.Equal(t, "/runtime.v1.RuntimeService/PodSandboxStatus", method)
		assert.Equal(t, "7f", request.(*runtimeapi.PodSandboxStatusRequest).GetPodSandboxId())
		cancel()
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	})
	_, err := c.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: "7f"})
	assertCode(t, codes.Canceled, err)
}

func TestAStreamFailsAtItsBeginningOrAfterAMessage(t *testing.T) {
	c := start(t, fakecri.Config{BatchSize: 2})
	c.rt.Fill(5)
	c.rt.Fault(failing("/StreamContainers"))
	stream, err := c.StreamContainers(t.Context(), &runtimeapi.StreamContainersRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	assertCode(t, codes.Unavailable, err)

	c.rt.Fault(nil)
	var sent atomic.Int32
	c.rt.FaultAfter(func(context.Context, string, any) error {
		if sent.Add(1) == 2 {
			return status.Error(codes.Unavailable, "injected")
		}
		return nil
	})
	stream, err = c.StreamContainers(t.Context(), &runtimeapi.StreamContainersRequest{})
	require.NoError(t, err)
	for range 2 {
		_, err = stream.Recv()
		require.NoError(t, err)
	}
	_, err = stream.Recv()
	assertCode(t, codes.Unavailable, err)
}

func TestCallsAreLoggedWithRequestAndMetadata(t *testing.T) {
	c := start(t, fakecri.Config{})
	ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", "00-7f")
	_, err := c.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: "7f"})
	require.NoError(t, err)
	_, err = c.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	require.NoError(t, err)
	stream, err := c.StreamImages(ctx, &runtimeapi.StreamImagesRequest{})
	require.NoError(t, err)
	receive(t, stream)

	var methods []string
	for _, call := range c.rt.Calls() {
		methods = append(methods, call.Method)
		assert.Equal(t, []string{"00-7f"}, call.Metadata.Get("traceparent"))
	}
	assert.Equal(t, []string{
		"/runtime.v1.RuntimeService/StopPodSandbox", "/runtime.v1.ImageService/ListImages", "/runtime.v1.ImageService/StreamImages",
	}, methods)
	require.Len(t, c.rt.Calls("StopPodSandbox", "/runtime.v1.ImageService/ListImages"), 2)
	assertProto(t, &runtimeapi.StopPodSandboxRequest{PodSandboxId: "7f"}, c.rt.Calls("StopPodSandbox")[0].Request)
	c.rt.ForgetCalls()
	assert.Empty(t, c.rt.Calls())
}

func TestTheLogOfCallsIsBoundedAndCanBeOff(t *testing.T) {
	c := start(t, fakecri.Config{CallLog: 3})
	off := start(t, fakecri.Config{CallLog: -1})
	for _, id := range strings.Split("abcdefghijk", "") {
		for _, c := range []*client{c, off} {
			_, err := c.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
			require.NoError(t, err)
		}
		assert.LessOrEqual(t, len(c.rt.Calls()), 3)
	}
	var ids string
	for _, call := range c.rt.Calls() {
		ids += call.Request.(*runtimeapi.StopPodSandboxRequest).GetPodSandboxId()
	}
	assert.Equal(t, "ijk", ids)
	assert.Empty(t, off.rt.Calls())
}
