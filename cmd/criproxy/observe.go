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
	legs := make(observedLeg, 0, len(o))
	for _, t := range o {
		var leg director.Leg
		if ctx, leg = t.Begin(ctx, info); leg != nil {
			legs = append(legs, leg)
		}
	}
	if len(legs) == 0 {
		return ctx, nil
	}
	return ctx, legs
}

// observedLeg is a leg that several want to see.
type observedLeg []director.Leg

func (l observedLeg) Request(f *codec.Frame) {
	for _, one := range l {
		one.Request(f)
	}
}

func (l observedLeg) Header(md metadata.MD) {
	for _, one := range l {
		one.Header(md)
	}
}

func (l observedLeg) Reply(f *codec.Frame) {
	for _, one := range l {
		one.Reply(f)
	}
}

func (l observedLeg) End(err error, trailer metadata.MD) {
	for _, one := range l {
		one.End(err, trailer)
	}
}
