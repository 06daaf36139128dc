package profile

import "github.com/criproxy/criproxy/internal/strict"

// From sets where the profile was read from, for the mistakes that are found later: a file, and
// where its keys stand. With nil places those are of the text that [Parse] got.
func (p *Profile) From(file string, places strict.Places) {
	if places == nil {
		places = p.places
	}
	p.places = places.In(file)
}

// Located puts its place before each mistake in err that begins with the path of a key.
func (p *Profile) Located(err error) error { return p.places.Locate(err) }
