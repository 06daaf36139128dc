package server

import (
	"errors"
	"fmt"

	"github.com/criproxy/criproxy/internal/base/strict"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/cri"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/observe/telemetry"
	"github.com/criproxy/criproxy/internal/server/listen"
)

// Check completes cfg with the defaults and reads the files that it names. Its error names every
// mistake, in the order of the file. It asks no backend and opens no socket.
func Check(cfg *config.Config) error {
	cfg.Sources = Sources(cfg)
	if err := errors.Join(cfg.Check(), checkBuiltIn(cfg), checkCapture(cfg), cfg.Locate(telemetry.CheckExport(&cfg.Export)), listen.CheckCerts(cfg)); err != nil {
		return strict.InOrder(errors.Join(err, Mistakes(cfg)))
	}
	return nil
}

// checkBuiltIn returns the mistakes in the access lists of cfg if its API is the built-in one.
func checkBuiltIn(cfg *config.Config) error {
	if cfg.Profile != "" || len(cfg.Proto) > 0 {
		return nil // checkAccess checks them when the API is read
	}
	var known []string
	for _, m := range cri.Methods() {
		known = append(known, m.Name)
	}
	return cfg.CheckMethods(known, true)
}

// checkCapture returns the mistake in the name of the file of -capture.
func checkCapture(cfg *config.Config) error {
	if cfg.Capture.Path == "" {
		return nil
	}
	if _, err := capture.FormatOf(cfg.Capture.Path); err != nil {
		return cfg.Locate(fmt.Errorf("capture: %w", err))
	}
	return nil
}

// checkAccess returns the mistakes in the access lists of cfg if its API is not the built-in one.
func checkAccess(cfg *config.Config, a API) error {
	if cfg.Profile == "" && len(cfg.Proto) == 0 {
		return nil // checkBuiltIn has checked them
	}
	var known []string
	for _, m := range a.Profile.AllVersions(a.Schema).Methods() {
		known = append(known, m.Name)
	}
	return cfg.CheckMethods(known, IsCRI(a.Profile))
}
