package calls

import (
	"io"
	"strings"
	"unicode"
)

// Sanitize replaces control characters, which a terminal would obey, with spaces. Use it for text
// that comes from runtimes, plugins or clients.
func Sanitize(s string) string { return sanitize(s, "") }

// Cut shortens a text to about n characters, on one line. Of a long error it leaves out the middle: what failed is at its
// beginning, and why at its end. It keeps words whole, unless they are very long.
func Cut(s string, n int) string {
	s = strings.Join(strings.Fields(Sanitize(s)), " ")
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	head, tail := string(r[:n/2]), string(r[len(r)-n/2:])
	if i := strings.LastIndexByte(head, ' '); i > len(head)/2 && r[n/2] != ' ' {
		head = head[:i]
	}
	if i := strings.IndexByte(tail, ' '); i >= 0 && i < len(tail)/2 && r[len(r)-n/2-1] != ' ' {
		tail = tail[i:]
	}
	return strings.TrimSpace(head) + " ... " + strings.TrimSpace(tail)
}

// Terminal is a writer for texts that people read on a terminal. It replaces control characters
// other than tabs and line ends, because errors quote runtimes, plugins and clients, and the reader
// is root.
type Terminal struct{ io.Writer }

// Write writes b, and returns its length.
func (t Terminal) Write(b []byte) (int, error) {
	if _, err := io.WriteString(t.Writer, sanitize(string(b), "\n\t")); err != nil {
		return 0, err
	}
	return len(b), nil
}

func sanitize(s, but string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && !strings.ContainsRune(but, r) {
			return ' '
		}
		return r
	}, s)
}
