package host

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
)

// LogTail returns the last n lines of the log, for error messages.
func (p Process) LogTail(n int) string {
	data, err := os.ReadFile(p.logFile)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("(end of %s:)\n%s", p.logFile, LastLines(string(data), n))
}

// LogLines returns the whole lines of the log, from offset on, that contain all of words, and the offset at which the
// log ends now.
func (p Process) LogLines(offset int64, words ...string) (lines []string, end int64, err error) {
	data, err := os.ReadFile(p.logFile)
	if err != nil {
		return nil, offset, fmt.Errorf("testbed: reading the log of %s: %w", p.title, err)
	}
	data = data[:bytes.LastIndexByte(data, '\n')+1]
	for line := range strings.Lines(string(data[min(offset, int64(len(data))):])) {
		if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) }) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines, int64(len(data)), nil
}

// LastLines returns at most n lines of text, the last ones.
func LastLines(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
