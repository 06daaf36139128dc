package telemetry

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/director"
)

// Spans make an OpenTelemetry span of each leg of a call, and pass the trace context on to the
// backend. Without a collector there are no spans, and the client's own trace context passes
// unchanged.
type Spans struct {
	tracer atomic.Pointer[trace.Tracer] // nil before Start
}

// Start begins to send spans to the collector at url. stop sends the remaining spans, for up to two
// seconds. node is the name of this node in Kubernetes; empty is that of the host.
func (s *Spans) Start(ctx context.Context, url, node string) (stop func(), err error) {
	if url == "" {
		return func() {}, nil
	}
	otel.SetErrorHandler(&spanErrors{})
	exporter, err := otlptracegrpc.New(ctx, otlptracegrpc.WithEndpointURL(url)) // other options come from OTEL_EXPORTER_OTLP_*
	if err != nil {
		return nil, err
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(aboutNode(ctx, node)))
	tracer := provider.Tracer("github.com/criproxy/criproxy")
	s.tracer.Store(&tracer)
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = provider.Shutdown(ctx) // the error handler logs lost spans
	}, nil
}

// carrier is metadata in the form in which OpenTelemetry reads and writes it.
type carrier metadata.MD

func (c carrier) Get(key string) string {
	if v := metadata.MD(c).Get(key); len(v) > 0 {
		return v[0]
	}
	return ""
}
func (c carrier) Set(key, value string) { metadata.MD(c).Set(key, value) }
func (c carrier) Keys() []string        { return nil } // only for baggage, which passes as it is

// Begin implements [director.Tracer].
func (s *Spans) Begin(ctx context.Context, info director.LegInfo) (context.Context, director.Leg) {
	tracer := s.tracer.Load()
	if tracer == nil || info.Endless {
		return ctx, nil
	}
	service, method, _ := strings.Cut(strings.TrimPrefix(info.Method, "/"), "/")
	options := []trace.SpanStartOption{
		trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(attribute.String("rpc.system", "grpc"), attribute.String("rpc.service", service), attribute.String("rpc.method", method)),
	}
	if info.Client {
		ctx = propagation.TraceContext{}.Extract(ctx, carrier(info.Metadata))
	} else {
		if !trace.SpanContextFromContext(ctx).IsValid() {
			return ctx, nil // a call that criproxy makes itself
		}
		options = append(options, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attribute.String("criproxy.backend", director.Backend{Name: info.Backend}.String())))
	}
	ctx, span := (*tracer).Start(ctx, service+"/"+method, options...)
	if !info.Client {
		md, ok := metadata.FromOutgoingContext(ctx)
		if !ok {
			md = metadata.MD{}
		}
		propagation.TraceContext{}.Inject(ctx, carrier(md))
		ctx = metadata.NewOutgoingContext(ctx, md)
	}
	return ctx, &spanLeg{span: span}
}

// spanLeg is the span of a leg.
type spanLeg struct {
	quietLeg
	span trace.Span
}

func (l *spanLeg) End(err error, _ metadata.MD) {
	code := 0
	if err != nil {
		code = int(codeOf(err))
		l.span.SetStatus(codes.Error, status.Convert(err).Message())
	}
	l.span.SetAttributes(attribute.Int("rpc.grpc.status_code", code))
	l.span.End()
}

// spanErrors logs at most once a minute why spans are lost: OpenTelemetry reports each attempt
// to reach a collector that is gone.
type spanErrors struct {
	mu   sync.Mutex
	last time.Time
}

// Handle implements [otel.ErrorHandler].
func (e *spanErrors) Handle(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if time.Since(e.last) > time.Minute {
		e.last = time.Now()
		klog.ErrorS(err, "Spans are lost; calls are not affected")
	}
}
