package main

import (
	"fmt"
	"strings"
)

// The table is between these lines of the report.
const (
	tableBegin = "<!-- made by make mutants -->\n"
	tableEnd   = "<!-- to here -->\n"
)

// table returns the table of mutants, in Markdown.
func table(all []mutant) string {
	var b strings.Builder
	b.WriteString("| broken on purpose | in | noticed by |\n|---|---|---|\n")
	for _, m := range all {
		by := strings.Join(m.tests, ", ")
		if m.tests[0] == wholePackage {
			by = "the search for leftover goroutines after " + strings.Join(m.run, ", ")
		}
		if len(m.model) > 0 {
			by += ", and the model from seed " + m.model[0]
		}
		fmt.Fprintf(&b, "| %s | `%s` | %s |\n", strings.TrimSuffix(m.broken, "."), m.file, by)
	}
	return b.String()
}
