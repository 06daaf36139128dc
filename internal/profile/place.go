package profile

import (
	"errors"
	"fmt"
	"strings"

	"github.com/criproxy/criproxy/internal/strict"
)

// From sets where the profile was read from, for the mistakes that are found later: a file, and
// the line of each key, path → line. With nil lines the lines are those of the text that
// [Parse] got.
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

// Located puts file and line before each mistake in err that begins with the path of a key.
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

// place returns where the longest path that text begins with stands; empty if there is none.
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
