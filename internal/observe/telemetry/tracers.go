// Package telemetry shows the calls and the state of a proxy: metrics, OpenTelemetry spans, the
// flight recorder with its file, the log of calls, the latest errors, and health. It traces calls
// for the director and reads the state of the proxy. Nothing in it changes a call.
//
// The [Tracers] see each call: Metrics (metrics.go), Spans (spans.go), LastErrors (lasterrors.go)
// and the tracer of [Recording] (record.go). The recording also has the files of an earlier process
// (keep.go) and the log of calls (calllog.go). gauges.go and health.go answer clients that ask. The
// [Exporter] (exporter.go) sends what was recorded to a store; the other files write to the log.
package telemetry

import (
	"context"

	"google.golang.org/grpc/metadata"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// Tracers are several tracers as one. Each gets the context that the one before it returned.
type Tracers []director.Tracer

// Begin implements [director.Tracer].
func (all Tracers) Begin(ctx context.Context, info director.LegInfo) (context.Context, director.Leg) {
	legs := &observedLeg{}
	legs.all = legs.room[:0]
	for _, t := range all {
		var leg director.Leg
		if recorder, ok := t.(tracer); ok {
			ctx, leg = recorder.begin(ctx, info, &legs.recorded)
		} else {
			ctx, leg = t.Begin(ctx, info)
		}
		if leg != nil {
			legs.all = append(legs.all, leg)
		}
	}
	if len(legs.all) == 0 {
		return ctx, nil
	}
	return ctx, legs
}

// quietLeg is a part of a leg that ignores all events but the end.
type quietLeg struct{}

func (quietLeg) Request(*codec.Frame) {}
func (quietLeg) Header(metadata.MD)   {}
func (quietLeg) Reply(*codec.Frame)   {}

// observedLeg is a leg that several tracers see.
type observedLeg struct {
	all      []director.Leg
	room     [5]director.Leg // memory for all and for the recorder's, so that one allocation suffices
	recorded capture.Leg
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
}
