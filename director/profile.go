package director

import "github.com/criproxy/criproxy/internal/profile"

// A Profile says what an API means, in the multiplexer's words: which fields hold names,
// how the names look in front, and what is to be done with the few methods for which that
// does not follow from their fields. It is written in YAML, in the language that
// docs/profile.md describes, and is immutable once it is in a [Config].
type Profile = profile.Profile

// ParseProfile reads a profile. Its error names every mistake in the text, each with its
// line. Whether the fields and methods it names exist is found by [New], which has the
// schema.
func ParseProfile(yaml []byte) (*Profile, error) { return profile.Parse(yaml) }
