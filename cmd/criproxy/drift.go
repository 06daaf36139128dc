package main

import (
	"k8s.io/klog/v2"

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

// logDrift is told of each finding once.
func logDrift(f drift.Finding) {
	what := "Seen, and not known: a method"
	switch f.Kind {
	case drift.Field:
		what = "Seen, and not known: a field"
	case drift.ID:
		what = "Seen, and not translated: a field that looks like an id"
	}
	klog.InfoS(what, "where", f.Where, "method", f.Method, "suggest", f.Suggest)
}
