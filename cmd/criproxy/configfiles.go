package main

import (
	"errors"

	"github.com/criproxy/criproxy/internal/certs"
	"github.com/criproxy/criproxy/internal/config"
)

// checkConfig completes cfg with the defaults and reads the files that it names. Its error
// names every mistake.
func checkConfig(cfg *config.Config) error {
	cfg.Sources = apiSources(cfg)
	return errors.Join(cfg.Check(), certs.Check(cfg))
}
