package main

import (
	"io"
	"strings"
	"unicode"
)

// tame writes text without what a terminal would obey: errors are in the words of
// runtimes, plugins and clients, and whoever looks is root.
type tame struct{ io.Writer }

func (w tame) Write(b []byte) (int, error) {
	text := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return ' '
		}
		return r
	}, string(b))
	if _, err := io.WriteString(w.Writer, text); err != nil {
		return 0, err
	}
	return len(b), nil
}
