package takeover

import (
	"regexp"
	"slices"
	"strings"
)

// Lines that install takes out of a file stay in it as comments, and those that it puts
// in are marked, so that uninstall leaves the file as it was, whatever has been changed
// elsewhere in it meanwhile.
const (
	takenOut = "#criproxy install# "
	putIn    = " # criproxy install"
	unended  = "# The line above had no end." + putIn + "\n" // the last line, where that is so
)

// made begins a file that install makes where there is none. Without what install puts in, it
// is one that a person could have written, and remains that when a person adds to it.
const made = "# Made by criproxy install; criproxy uninstall removes it, unless more is in it.\n"

// onlyMade is such a file to which nothing has been added.
var onlyMade = regexp.MustCompile("^" + regexp.QuoteMeta(made) + `(?:version = 2|backends:\n- address: .*)\n$`)

// undoLines is text without the changes of install.
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
	if strings.HasSuffix(text, "\n"+unended) { // still the last: no line was added
		before = strings.TrimSuffix(before, "\n")
	}
	if onlyMade.MatchString(before) {
		return ""
	}
	return before
}

// splitLines are the lines of text, each with its end, also the last one.
func splitLines(text string) []string {
	if !strings.HasSuffix(text, "\n") {
		text += "\n" + unended
	}
	return strings.SplitAfter(text, "\n")
}

// top is where lines are put in that could stand anywhere: not above the comment of a file
// that install has made, and inside a YAML document that begins with ---.
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

// replaceLines removes n lines from the i-th on, and inserts one.
func replaceLines(lines []string, i, n int, line string) []string {
	next := slices.Clone(lines[:i])
	for _, old := range lines[i : i+n] {
		next = append(next, takenOut+old)
	}
	next = append(next, line+putIn+"\n")
	return append(next, lines[i+n:]...)
}
