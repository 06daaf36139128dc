package director

import (
	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/address"
	"github.com/criproxy/criproxy/internal/dump"
	"github.com/criproxy/criproxy/internal/profile"
)

// Names that only our own command still uses, until its files have moved.

// StateChanging is [profile.StateChanging].
const StateChanging = profile.StateChanging

// CheckName is [profile.CheckBackendName].
func CheckName(name string) error { return profile.CheckBackendName(name) }

// ParseRules is [profile.ParseRules].
func ParseRules(data []byte) (*Profile, error) { return profile.ParseRules(data) }

// Secrets is [profile.Secrets].
func Secrets(p *Profile, s *codec.Schema) (dump.Secrets, error) { return profile.SecretsOf(p, s) }

// NetworkOf is [address.Network].
func NetworkOf(addr string) (string, error) { return address.Network(addr) }

// CheckBalance is [address.CheckBalance].
func CheckBalance(policy string) error { return address.CheckBalance(policy) }
