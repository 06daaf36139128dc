package takeover

import (
	"regexp"
	"slices"
	"strings"
)

// Install turns the lines that it replaces into comments, and marks the lines that it adds. So uninstall can restore
// them, and keep changes that were made to other lines meanwhile.
const (
	takenOut = "#criproxy install# "
	putIn    = " # criproxy install"
	unended  = "# The line above had no end." + putIn + "\n" // added after a last line without a newline
)

// made is the first line of a file that install creates. The file is valid without the marked lines, too, so that it
// stays valid if a person adds to it and then runs uninstall.
const made = "# Made by criproxy install; criproxy uninstall removes it, unless more is in it.\n"

// onlyMade matches such a file, without the marked lines, if nothing was added to it.
var onlyMade = regexp.MustCompile("^" + regexp.QuoteMeta(made) + `(?:version = 2|backends:\n- address: .*)\n$`)

// undoLines returns text without the changes of install.
func undoLines(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if original, ok := strings.CutPrefix(line, takenOut); ok {
			b.WriteString(original)
		} else if !strings.HasSuffix(strings.TrimRight(line, "\n"), putIn) {
			b.WriteString(line)
		}
	}
	before := b.String()
	if strings.HasSuffix(text, "\n"+unended) { // it is still the last line: nothing was appended
		before = strings.TrimSuffix(before, "\n")
	}
	if onlyMade.MatchString(before) {
		return ""
	}
	return before
}

// splitLines returns the lines of text, each with a newline, even the last one.
func splitLines(text string) []string {
	if !strings.HasSuffix(text, "\n") {
		text += "\n" + unended
	}
	return strings.SplitAfter(text, "\n")
}

// top returns the index at which to insert lines that can stand anywhere: after the first comment of a file that
// install has made, and after the --- at which a YAML document begins.
func top(lines []string) int {
	at := 0
	if lines[0] == made {
		at = 1
	}
	for i, line := range lines {
		switch code := strings.TrimSpace(line); {
		case strings.HasPrefix(line, "---"):
			return i + 1
		case code != "" && code[0] != '#' && code[0] != '%':
			return at
		}
	}
	return at
}

// replaceLines turns n lines, from index i on, into comments, and inserts one line after them.
func replaceLines(lines []string, i, n int, line string) []string {
	next := slices.Clone(lines[:i])
	for _, old := range lines[i : i+n] {
		next = append(next, takenOut+old)
	}
	next = append(next, line+putIn+"\n")
	return append(next, lines[i+n:]...)
}
