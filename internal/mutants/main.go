// Mutants shows that the tests notice when something that must hold is broken: it breaks
// it, and runs the tests that are to fail.
//
//	go run ./internal/mutants [-only REGEXP] [-report docs/robustness.md]
//
// What is broken stands in testdata, a file each. No source is touched: the changed file
// is laid over it (go help build, -overlay).
package main

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"

	"github.com/criproxy/criproxy/internal/markdown"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// folder is where the mutants are, from the root of the repository.
const folder = "internal/mutants/testdata"

func run() error {
	only := flag.String("only", ".", "run the mutants whose names match this `regexp`")
	report := flag.String("report", "", "write the table of them into this `file`; it needs all")
	flag.Parse()
	wanted, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	all, err := read(os.DirFS(folder))
	if err != nil {
		return err
	}
	chosen := slices.DeleteFunc(slices.Clone(all), func(m mutant) bool { return !wanted.MatchString(m.name) })
	if *report != "" && len(chosen) < len(all) {
		return fmt.Errorf("-report takes all mutants, and -only leaves out %d", len(all)-len(chosen))
	}
	if err := runner(".").run(chosen, os.Stdout); err != nil {
		return err
	}
	if *report == "" {
		return nil
	}
	return markdown.Between(*report, tableBegin, tableEnd, table(chosen))
}
