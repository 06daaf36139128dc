package profile

import "github.com/criproxy/criproxy/internal/base/strict"

// From sets the file that the profile was read from, and the places of its keys there, for mistakes
// that are found later. Nil places mean those in the text that [Parse] got.
func (p *Profile) From(file string, places strict.Places) {
	if places == nil {
		places = p.places
	}
	p.places = places.In(file)
}

// Located returns err with the place of the key before each mistake that begins with the path of a
// key.
func (p *Profile) Located(err error) error { return p.places.Locate(err) }
