package inspect

import (
	"io"
	"strings"
	"unicode"
)

// Tame keeps what a terminal would obey out of a text that others chose.
func Tame(s string) string { return tame(s, "") }

// Terminal is what shows whole texts to people: all but the ends of lines and tabs of them
// is tamed. Errors are in the words of runtimes, plugins and clients, and whoever looks is
// root.
type Terminal struct{ io.Writer }

// Write writes b.
func (t Terminal) Write(b []byte) (int, error) {
	if _, err := io.WriteString(t.Writer, tame(string(b), "\n\t")); err != nil {
		return 0, err
	}
	return len(b), nil
}

func tame(s, but string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && !strings.ContainsRune(but, r) {
			return ' '
		}
		return r
	}, s)
}
