package director

import (
	"errors"
	"fmt"
	"strings"
)

// located puts the line of the file before each mistake in err, as far as the
// profile was read from one. Mistakes begin with the path of a key.
func (p *Profile) located(err error) error {
	if err == nil || len(p.lines) == 0 {
		return err
	}
	var all []error
	for text := range strings.SplitSeq(err.Error(), "\n") {
		if line := p.line(text); line > 0 {
			text = fmt.Sprintf("line %d: %s", line, text)
		}
		all = append(all, errors.New(text))
	}
	return errors.Join(all...)
}

// line returns the line of the longest path that text begins with, 0 if it begins
// with none.
func (p *Profile) line(text string) int {
	best, line := 0, 0
	for path, at := range p.lines {
		rest, ok := strings.CutPrefix(text, path)
		if ok && len(path) > best && (rest == "" || strings.ContainsAny(rest[:1], ":.[")) {
			best, line = len(path), at
		}
	}
	return line
}
