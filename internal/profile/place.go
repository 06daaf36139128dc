package profile

import (
	"errors"
	"fmt"
	"strings"

	"github.com/criproxy/criproxy/internal/strict"
)

// From says where the profile was read from, for the mistakes that [New] finds: a
// file, and where its keys stand in it, path → line. Nil lines are those of the text
// that it was parsed from.
func (p *Profile) From(file string, lines map[string]int) {
	if lines == nil {
		for path, place := range p.places {
			p.places[path] = file + ": " + place
		}
		return
	}
	p.places = map[string]string{}
	for path, line := range lines {
		p.places[path] = fmt.Sprintf("%s: line %d", file, line)
	}
}

// parsed remembers where the keys of data stand.
func (p *Profile) parsed(data []byte) {
	p.places = map[string]string{}
	for path, line := range strict.Lines(data) {
		p.places[path] = fmt.Sprintf("line %d", line)
	}
}

// Located puts its place before each mistake in err, as far as the profile was read
// from somewhere. Mistakes begin with the path of a key.
func (p *Profile) Located(err error) error {
	if err == nil || len(p.places) == 0 {
		return err
	}
	var all []error
	for text := range strings.SplitSeq(err.Error(), "\n") {
		if place := p.place(text); place != "" {
			text = place + ": " + text
		}
		all = append(all, errors.New(text))
	}
	return errors.Join(all...)
}

// place returns where the longest path stands that text begins with, nothing if it
// begins with none.
func (p *Profile) place(text string) string {
	best, place := 0, ""
	for path, at := range p.places {
		rest, ok := strings.CutPrefix(text, path)
		if ok && len(path) > best && (rest == "" || strings.ContainsAny(rest[:1], ":.[")) {
			best, place = len(path), at
		}
	}
	return place
}
