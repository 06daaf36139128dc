package main

import (
	"context"

	"google.golang.org/grpc/metadata"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
)

// observers are several tracers as one. Each gets the context that those before it
// left, with the metadata that is sent on.
type observers []director.Tracer

// Begin is for the director.
func (o observers) Begin(ctx context.Context, info director.LegInfo) (context.Context, director.Leg) {
	legs := &observedLeg{}
	legs.all = legs.room[:0]
	for _, t := range o {
		var leg director.Leg
		if ctx, leg = t.Begin(ctx, info); leg != nil {
			legs.all = append(legs.all, leg)
		}
	}
	if len(legs.all) == 0 {
		return ctx, nil
	}
	return ctx, legs
}

// observedLeg is a leg that several want to see.
type observedLeg struct {
	all  []director.Leg
	room [5]director.Leg // for all, so that both are one allocation
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
