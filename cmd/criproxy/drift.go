package main

import (
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/drift"
)

// driftConfig is what the proxy watches for.
func driftConfig(c *config.Config, d director.Config) drift.Config {
	w := drift.Config{Profile: d.Profile, Schema: d.Schema, Found: logDrift}
	for _, b := range c.Backends {
		w.Backends = append(w.Backends, b.Name)
	}
	return w
}
