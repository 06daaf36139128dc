// Package telemetry shows the calls and the state of a proxy: metrics, OpenTelemetry spans, the
// flight recorder with its file, the log of calls, the latest errors, and health. It traces calls
// for the director and reads the state of the proxy. Nothing in it changes a call.
//
// The [Tracers] see each call: Metrics (metrics.go), Spans (spans.go) and the tracer of [Recording]
// (record.go); they note the [LastErrors]. The recording also has the files of an earlier process
// (keep.go) and the log of calls (calllog.go). health.go answers clients that ask. The
// [Exporter] (exporter.go) sends what was recorded to a store; the other files write to the log.
package telemetry

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// Tracers are several tracers as one. They also keep how the calls of clients have failed. They do not change after they were
// made, and are safe for concurrent use if each tracer is.
type Tracers struct {
	Each   []director.Tracer // each gets the context that the one before it returned
	Errors *LastErrors
}

// Begin implements [director.Tracer].
func (t Tracers) Begin(ctx context.Context, info director.LegInfo) (context.Context, director.Leg) {
	l := &observedLeg{errors: t.Errors, method: info.Method, backend: director.Backend{Name: info.Backend}.String()}
	if !info.Client {
		l.client, _ = ctx.Value(clientLeg{}).(*observedLeg)
	}
	l.all = l.room[:0]
	for _, one := range t.Each {
		var leg director.Leg
		if recorder, ok := one.(tracer); ok {
			ctx, leg = recorder.begin(ctx, info, &l.recorded)
		} else {
			ctx, leg = one.Begin(ctx, info)
		}
		if leg != nil {
			l.all = append(l.all, leg)
		}
	}
	if info.Client {
		l.Context = ctx
		return l, l
	}
	return ctx, l
}

// quietLeg is a part of a leg that ignores all events but the end.
type quietLeg struct{}

func (quietLeg) Request(*codec.Frame) {}
func (quietLeg) Header(metadata.MD)   {}
func (quietLeg) Reply(*codec.Frame)   {}

// observedLeg is a leg that several tracers see. That of a client is also the context of the call, in which the legs of backends
// find it. One allocation has the memory that all tracers of a leg need. The legs of backends may end at once, so they note the first
// failure atomically, which the client's leg reads at its end.
type observedLeg struct {
	context.Context // of a client's leg; nil for that of a backend
	all             []director.Leg
	room            [5]director.Leg // memory for all and for the recorder's, so that one allocation suffices
	recorded        capture.Leg

	errors          *LastErrors
	method, backend string
	client          *observedLeg                // for which a backend is called; nil for a call that criproxy makes itself
	failed          atomic.Pointer[observedLeg] // of a client's leg: the first of a backend with an error
}

// clientLeg is the key of the client's leg in the context of a call.
type clientLeg struct{}

// Value returns the leg itself for clientLeg, and otherwise the value in the context of the call.
func (l *observedLeg) Value(key any) any {
	if key == (clientLeg{}) {
		return l
	}
	return l.Context.Value(key)
}

func (l *observedLeg) Request(f *codec.Frame) {
	for _, one := range l.all {
		one.Request(f)
	}
}

func (l *observedLeg) Header(md metadata.MD) {
	for _, one := range l.all {
		one.Header(md)
	}
}

func (l *observedLeg) Reply(f *codec.Frame) {
	for _, one := range l.all {
		one.Reply(f)
	}
}

func (l *observedLeg) End(err error, trailer metadata.MD) {
	for _, one := range l.all {
		one.End(err, trailer)
	}
	failed := l.failed.Load()
	switch code := codeOf(err); {
	case code == codes.OK, code == codes.Canceled:
	case l.client != nil:
		l.client.failed.CompareAndSwap(nil, l)
	case l.Context != nil && failed != nil:
		l.errors.add(l.method, failed.backend, err)
	case l.Context != nil:
		l.errors.add(l.method, "", err)
	}
}
