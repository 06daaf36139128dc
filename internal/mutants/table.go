package main

import (
	"fmt"
	"os"
	"strings"
)

// The table stands between these lines.
const (
	tableBegin = "<!-- made by make mutants -->\n"
	tableEnd   = "<!-- to here -->\n"
)

// table shows mutants that were noticed.
func table(all []mutant) string {
	var b strings.Builder
	b.WriteString("| broken on purpose | in | noticed by |\n|---|---|---|\n")
	for _, m := range all {
		by := strings.Join(m.tests, ", ")
		if m.tests[0] == wholePackage {
			by = "the search for goroutines that are left, after " + strings.Join(m.run, ", ")
		}
		fmt.Fprintf(&b, "| %s | `%s` | %s |\n", strings.TrimSuffix(m.broken, "."), m.file, by)
	}
	return b.String()
}

// writeTable writes the table into a file that has a place for it.
func writeTable(path string, all []mutant) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(data), tableBegin)
	_, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok || !ok2 {
		return fmt.Errorf("%s has no lines %q and %q, between which the table is to be", path, strings.TrimSpace(tableBegin), strings.TrimSpace(tableEnd))
	}
	return os.WriteFile(path, []byte(before+tableBegin+table(all)+tableEnd+after), 0o644)
}
