package daemon

import (
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/observe/telemetry"
	"github.com/criproxy/criproxy/internal/profile/drift"
	"github.com/criproxy/criproxy/internal/proxy/config"
)

// driftConfig returns the configuration with which the proxy looks for drift in messages.
func driftConfig(c *config.Config, d director.Config) drift.Config {
	w := drift.Config{Profile: d.Profile, Schema: d.Schema, Found: telemetry.LogDrift}
	for _, b := range c.Backends {
		w.Backends = append(w.Backends, b.Name)
	}
	return w
}
