// Package suggest finds the name that the writer of a misspelt one probably meant.
package suggest

import (
	"fmt"
	"strings"
	"unicode"
)

// Nearest returns ` (did you mean "id"?)` with the one of names that is nearest to name or, if none is near, the longest with
// whose words name begins, as adminSocket begins with admin. It returns "" if there is none.
func Nearest(name string, names []string) string {
	letters := len(strings.TrimPrefix(name, "-")) // a flag counts without its dash
	best, at := "", min(1+letters/3, letters/2)   // how many letters may be wrong
	for _, n := range names {
		if d := distance(name, n); d <= at && (best == "" || d < at) {
			best, at = n, d
		}
	}
	if best == "" {
		best = beginning(name, names)
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(" (did you mean %q?)", best)
}

// beginning returns the longest of names that is the first words of name, "" if there is none.
func beginning(name string, names []string) (best string) {
	for _, n := range names {
		if rest, ok := strings.CutPrefix(name, n); ok && rest != "" && !unicode.IsLower(rune(rest[0])) && len(n) > len(best) {
			best = n
		}
	}
	return best
}

// distance returns how many letters must be inserted, deleted or exchanged to get from a to b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			d := min(row[j], row[j+1]) + 1
			if a[i] == b[j] {
				d = min(d, diagonal)
			} else {
				d = min(d, diagonal+1)
			}
			diagonal, row[j+1] = row[j+1], d
		}
	}
	return row[len(b)]
}
