// Package patterns has the table of patterns to which the flags of the commands and the fields of the page are held.
package patterns

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/observe/calls"
)

// A Row is a line of the table: patterns for a flag, which is a field of the page too.
type Row struct {
	Flag, Patterns string
	Refused        bool
	Says           string // why they are refused
	Filter         calls.Filter
}

// Table reads the table from a file, internal/observe/calls/testdata/patterns.txt.
func Table(t testing.TB, file string) []Row {
	t.Helper()
	table, err := os.ReadFile(file)
	require.NoError(t, err)
	var rows []Row
	for line := range strings.Lines(string(table)) {
		flag, rest, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		r := Row{Flag: flag}
		r.Patterns, r.Says, r.Refused = strings.Cut(rest, " -> ")
		switch flag {
		case "method":
			r.Filter.Method = r.Patterns
		case "backend":
			r.Filter.Backend = r.Patterns
		case "status":
			r.Filter.Status = r.Patterns
		case "client":
			r.Filter.Client = r.Patterns
		case "pod":
			r.Filter.Pod = r.Patterns
		}
		require.NotEqual(t, calls.Filter{}, r.Filter, line)
		rows = append(rows, r)
	}
	require.Greater(t, len(rows), 40)
	return rows
}
