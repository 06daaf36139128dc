// Mutants checks that the tests notice defects: it breaks production code on purpose and runs
// the tests that must fail.
//
//	go run ./internal/testing/mutants [-only REGEXP]
//
// mutants.txt describes the mutants. The sources stay as they are: go test reads the
// changed file through an overlay (go help build, -overlay).
package main

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run() error {
	only := flag.String("only", ".", "run the mutants whose names match this `regexp`")
	flag.Parse()
	wanted, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	all, err := read(table)
	if err != nil {
		return err
	}
	chosen := slices.DeleteFunc(all, func(m mutant) bool { return !wanted.MatchString(m.name) })
	return runner(".").run(chosen, os.Stdout)
}
