package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// metadataListener starts a runtime that answers every call with an empty message, and records the
// metadata of RunPodSandbox and ListPodSandbox.
func metadataListener(t *testing.T, path string) <-chan metadata.MD {
	t.Helper()
	seen := make(chan metadata.MD, 1000)
	s := grpc.NewServer(grpc.ForceServerCodecV2(codec.Raw), grpc.UnknownServiceHandler(func(_ any, ss grpc.ServerStream) error {
		name, _ := grpc.MethodFromServerStream(ss)
		md, _ := metadata.FromIncomingContext(ss.Context())
		if err := ss.RecvMsg(&codec.Frame{}); err != nil {
			return err
		}
		if len(md.Get("traceparent")) > 0 {
			seen <- md
		}
		if strings.HasSuffix(name, "/StopPodSandbox") {
			return status.Error(codes.Aborted, "no")
		}
		return ss.SendMsg(&codec.Frame{})
	}))
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	go s.Serve(l)
	t.Cleanup(s.Stop)
	return seen
}

const (
	traceID  = "4bf92f3577b34da6a3ce929d0e0e4736"
	parentID = "00f067aa0ba902b7"
)

// withTrace returns a context whose calls belong to a trace.
func withTrace(t *testing.T) context.Context {
	return metadata.AppendToOutgoingContext(t.Context(), "traceparent", "00-"+traceID+"-"+parentID+"-01", "tracestate", "a=b", "baggage", "pod=web")
}

// newTraced returns a process whose runtimes are metadataListeners.
func newTraced(t *testing.T) (*process, []<-chan metadata.MD) {
	p := newProcess(t)
	var seen []<-chan metadata.MD
	for i, m := range p.runtimes {
		m.Kill()
		seen = append(seen, metadataListener(t, fmt.Sprintf("%s/%d.sock", p.dir, i)))
	}
	return p, seen
}

func TestAClientsTraceReachesEachRuntimeUnchanged(t *testing.T) {
	t.Parallel()
	p, seen := newTraced(t)
	p.launch()
	_, err := runtimeapi.NewRuntimeServiceClient(p.connect(p.front)).ListPodSandbox(withTrace(t), &runtimeapi.ListPodSandboxRequest{})
	require.NoError(t, err)
	for _, ch := range seen {
		md := <-ch
		assert.Equal(t, []string{"00-" + traceID + "-" + parentID + "-01"}, md.Get("traceparent"))
		assert.Equal(t, []string{"a=b"}, md.Get("tracestate"))
		assert.Equal(t, []string{"pod=web"}, md.Get("baggage"))
	}
}

// A spanCollector receives spans.
type spanCollector struct {
	collector.UnimplementedTraceServiceServer
	spans chan *otlp.Span
}

func (c *spanCollector) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	for _, of := range r.GetResourceSpans() {
		for _, scope := range of.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				c.spans <- s
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

func TestSpansShowBothLegsOfACall(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	c := &spanCollector{spans: make(chan *otlp.Span, 1000)}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, c)
	go server.Serve(l)
	t.Cleanup(server.Stop)
	p, seen := newTraced(t)
	p.env = append(os.Environ(), "OTEL_EXPORTER_OTLP_ENDPOINT=http://"+l.Addr().String(), "OTEL_BSP_SCHEDULE_DELAY=50")
	p.launch()
	testkit.Eventually(t, "both runtimes are up: no call asks which version they speak", func() bool {
		_, r := p.status()
		return r.Backends[0].State == "up" && r.Backends[1].State == "up"
	})
	_, err = runtimeapi.NewRuntimeServiceClient(p.connect(p.front)).StopPodSandbox(withTrace(t), &runtimeapi.StopPodSandboxRequest{PodSandboxId: "beta.io__1"})
	testkit.AssertCode(t, codes.Aborted, err)
	md := <-seen[1]

	byKind := map[otlp.Span_SpanKind]*otlp.Span{}
	for len(byKind) < 2 {
		s := <-c.spans
		if s.GetName() == "runtime.v1.RuntimeService/StopPodSandbox" {
			byKind[s.GetKind()] = s
		}
		assert.Contains(t, []string{"runtime.v1.RuntimeService/StopPodSandbox"}, s.GetName(), "criproxy's own calls have no span")
	}
	front, back := byKind[otlp.Span_SPAN_KIND_SERVER], byKind[otlp.Span_SPAN_KIND_CLIENT]
	hex := func(b []byte) string { return fmt.Sprintf("%x", b) }
	assert.Equal(t, traceID, hex(front.GetTraceId()))
	assert.Equal(t, parentID, hex(front.GetParentSpanId()))
	assert.Equal(t, traceID, hex(back.GetTraceId()))
	assert.Equal(t, front.GetSpanId(), back.GetParentSpanId())
	assert.Equal(t, []string{"00-" + traceID + "-" + hex(back.GetSpanId()) + "-01"}, md.Get("traceparent"), "the runtime's part belongs to the leg to it")
	assert.Equal(t, []string{"a=b"}, md.Get("tracestate"))
	assert.Equal(t, []string{"pod=web"}, md.Get("baggage"))
	attributes := map[string]string{}
	for _, a := range back.GetAttributes() {
		attributes[a.GetKey()] = a.GetValue().GetStringValue() + fmt.Sprint(a.GetValue().GetIntValue())
	}
	assert.Equal(t, "beta.io0", attributes["criproxy.backend"])
	assert.Equal(t, fmt.Sprint(int(codes.Aborted)), attributes["rpc.grpc.status_code"])
	assert.Equal(t, otlp.Status_STATUS_CODE_ERROR, back.GetStatus().GetCode())
}
