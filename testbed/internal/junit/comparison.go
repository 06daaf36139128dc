package junit

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A Comparison compares the outcomes of the same specs in several runs: directly, and through criproxy.
type Comparison struct {
	Columns []string          // names of the columns that identify a run
	Reasons map[string]string // :: spec → why its outcome may differ from the direct one

	runs []run
}

type run struct {
	columns    []string
	is, direct Outcomes
}

// Add appends a run. If direct is nil, it is the direct run itself.
func (c *Comparison) Add(is, direct Outcomes, columns ...string) {
	c.runs = append(c.runs, run{columns, is, direct})
}

// Table returns the numbers of outcomes of each run, as Markdown.
func (c *Comparison) Table() string {
	var b strings.Builder
	row := func(first []string, cells ...any) {
		for _, cell := range first {
			fmt.Fprintf(&b, "| %s ", cell)
		}
		for _, cell := range cells {
			fmt.Fprintf(&b, "| %v ", cell)
		}
		b.WriteString("|\n")
	}
	row(c.Columns, Passed, Failed, Skipped, "not as directly")
	b.WriteString(strings.Repeat("| --- ", len(c.Columns)+4) + "|\n")
	for _, r := range c.runs {
		row(r.columns, r.is.Count(Passed), r.is.Count(Failed), r.is.Count(Skipped), len(r.different()))
	}
	return b.String()
}

// Lists returns the specs that fail directly, and those whose outcome differs from the direct one, as Markdown.
func (c *Comparison) Lists() string {
	var b strings.Builder
	for _, r := range c.runs {
		title := strings.Join(r.columns, ", ")
		if r.direct == nil {
			fmt.Fprintf(&b, "\nWith %s, these fail:\n\n", title)
			for _, spec := range slices.Sorted(maps.Keys(r.is)) {
				if r.is[spec].State == Failed {
					fmt.Fprintf(&b, "- %s\n", short(spec))
				}
			}
			continue
		}
		for i, spec := range r.different() {
			if i == 0 {
				fmt.Fprintf(&b, "\nWith %s, these end otherwise than directly:\n\n", title)
			}
			fmt.Fprintf(&b, "- %s: %s and not %s", short(spec), r.is[spec], r.direct[spec])
			if why := c.Reasons[spec]; why != "" {
				fmt.Fprintf(&b, "; %s", why)
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}

// different returns the specs whose outcome differs from the direct one, sorted.
func (r run) different() (specs []string) {
	if r.direct == nil {
		return nil
	}
	all := maps.Clone(r.direct)
	maps.Copy(all, r.is)
	for _, spec := range slices.Sorted(maps.Keys(all)) {
		if r.is[spec].State != r.direct[spec].State {
			specs = append(specs, spec)
		}
	}
	return specs
}

// short returns the name of a spec without the part that all names share.
func short(spec string) string {
	return strings.TrimPrefix(strings.TrimPrefix(spec, "[It] "), "[k8s.io] ")
}
