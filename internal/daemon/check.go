package daemon

import (
	"errors"

	"github.com/criproxy/criproxy/internal/api"
	"github.com/criproxy/criproxy/internal/certs"
	"github.com/criproxy/criproxy/internal/config"
)

// Check completes cfg with the defaults and reads the files that it names. Its error names every
// mistake.
func Check(cfg *config.Config) error {
	cfg.Sources = api.Sources(cfg)
	return errors.Join(cfg.Check(), certs.Check(cfg))
}
