package server

import (
	"context"

	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/drift"
	"github.com/criproxy/criproxy/internal/observe/telemetry"
)

// driftConfig returns the configuration with which the proxy finds drift in messages.
func driftConfig(c *config.Config, d director.Config) drift.Config {
	w := drift.Config{Profile: d.Profile, Schema: d.Schema, Found: telemetry.LogDrift}
	for _, b := range c.Backends {
		w.Backends = append(w.Backends, b.Name)
	}
	return w
}

// driftTracer shows a watch the calls of clients.
type driftTracer struct{ *drift.Watch }

// Begin implements [director.Tracer].
func (t driftTracer) Begin(ctx context.Context, info director.LegInfo) (context.Context, director.Leg) {
	if info.Client {
		if leg := t.Watch.Begin(info.Method); leg != nil {
			return ctx, leg
		}
	}
	return ctx, nil
}
