package critest

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/criproxy/criproxy/internal/markdown"
	"github.com/criproxy/criproxy/testbed/internal/junit"
)

// results are those of all runs, in order.
type results struct{ rows []row }

type row struct {
	runtime, how string
	direct, is   junit.Outcomes
}

func (r *results) add(runtime, how string, direct, is junit.Outcomes) {
	r.rows = append(r.rows, row{runtime, how, direct, is})
}

// table shows how many specs ended how.
func (r *results) table() string {
	var b strings.Builder
	b.WriteString("| runtime | how | passed | failed | skipped | not as directly |\n| --- | --- | --- | --- | --- | --- |\n")
	for _, row := range r.rows {
		fmt.Fprintf(&b, "| %s | %s | %d | %d | %d | %d |\n", row.runtime, row.how, row.is.Count(junit.Passed), row.is.Count(junit.Failed), row.is.Count(junit.Skipped), len(row.different()))
	}
	return b.String()
}

// different are the specs that did not end as they did directly.
func (r row) different() []string {
	var all []string
	for _, spec := range slices.Sorted(maps.Keys(r.direct)) {
		if r.is[spec].State != r.direct[spec].State {
			all = append(all, spec)
		}
	}
	return all
}

// lists names the specs that did not pass directly, and those that ended otherwise through criproxy.
func (r *results) lists() string {
	var b strings.Builder
	for _, row := range r.rows {
		if row.how == "directly" {
			fmt.Fprintf(&b, "\nOn %s itself, and so through criproxy, these fail:\n\n", row.runtime)
			for _, spec := range slices.Sorted(maps.Keys(row.is)) {
				if row.is[spec].State == junit.Failed {
					fmt.Fprintf(&b, "- %s\n", short(spec))
				}
			}
			continue
		}
		for i, spec := range row.different() {
			if i == 0 {
				fmt.Fprintf(&b, "\nOn %s %s these end otherwise:\n\n", row.runtime, row.how)
			}
			fmt.Fprintf(&b, "- %s: %s and not %s", short(spec), row.is[spec].State, row.direct[spec].State)
			if why := otherwise[spec]; why != "" {
				fmt.Fprintf(&b, "; %s", why)
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}

// short is the name of a spec without what all have.
func short(spec string) string {
	return strings.TrimPrefix(strings.TrimPrefix(spec, "[It] "), "[k8s.io] ")
}

// The table stands between these lines.
const (
	tableBegin = "<!-- made by make conformance -->\n"
	tableEnd   = "<!-- to here -->\n"
)

// write puts the table and the lists where they belong in a file.
func (r *results) write(path string) error {
	return markdown.Between(path, tableBegin, tableEnd, r.table()+r.lists())
}
