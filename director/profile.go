package director

import "github.com/criproxy/criproxy/internal/profile"

// A Profile describes an API for the director: which fields hold names, what the names look like
// in front, and where the calls go of the few methods for which that does not follow from their
// fields. docs/profile.md describes its language, which is YAML. Once a Profile is in a [Config]
// the caller must not change it.
type Profile = profile.Profile

// ParseProfile reads a profile. Its error names every mistake in the text, each with its
// line. [New], which has the schema, checks that the fields and methods in the profile exist.
func ParseProfile(yaml []byte) (*Profile, error) { return profile.Parse(yaml) }
