package daemon

import (
	"errors"

	"github.com/criproxy/criproxy/internal/certs"
	"github.com/criproxy/criproxy/internal/proxy/api"
	"github.com/criproxy/criproxy/internal/proxy/config"
)

// Check completes cfg with the defaults and reads the files that it names. Its error names every
// mistake.
func Check(cfg *config.Config) error {
	cfg.Sources = api.Sources(cfg)
	if err := errors.Join(cfg.Check(), certs.Check(cfg)); err != nil {
		return errors.Join(err, api.Mistakes(cfg))
	}
	return nil
}

// checkAccess returns the mistakes in the access lists of cfg if its API is not the built-in one.
func checkAccess(cfg *config.Config, a api.API) error {
	if cfg.Profile == "" && len(cfg.Proto) == 0 {
		return nil // config.Check has checked them
	}
	var known []string
	for _, m := range a.Profile.AllVersions(a.Schema).Methods() {
		known = append(known, m.Name)
	}
	return cfg.CheckMethods(known, api.IsCRI(a.Profile))
}
