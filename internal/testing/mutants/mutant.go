package main

import (
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// table holds the mutants. It begins with the description of its form.
//
//go:embed mutants.txt
var table string

// A mutant is one change of a function that causes a defect: see mutants.txt.
//
// The test name TestMain stands for the package as a whole: it fails, although all its tests pass,
// if they leave goroutines behind.
type mutant struct {
	name     string
	broken   string
	folder   string // relative to the root of the repository
	function string
	change   change
	pkg      string   // whose tests must notice
	tests    []string // each of them must fail
	run      []string // further tests to run
}

// read returns the mutants of a table. Its error names every mistake.
func read(text string) ([]mutant, error) {
	var all []mutant
	var errs []error
	for line := range strings.Lines(text) {
		switch {
		case strings.TrimSpace(line) == "" || line[0] == '#':
		case line[0] != '\t':
			name, broken, _ := strings.Cut(strings.TrimSpace(line), ": ")
			all = append(all, mutant{name: name, broken: broken})
		case len(all) == 0:
			errs = append(errs, fmt.Errorf("%q comes before the first mutant", line))
		default:
			m := &all[len(all)-1]
			if err := m.set(strings.TrimSpace(line)); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", m.name, err))
			}
		}
	}
	for i, m := range all {
		if m.broken == "" || m.function == "" || len(m.tests) == 0 {
			errs = append(errs, fmt.Errorf("%s: want a description, in, and by", m.name))
		}
		if slices.ContainsFunc(all[:i], func(other mutant) bool { return other.name == m.name }) {
			errs = append(errs, fmt.Errorf("%s is there twice", m.name))
		}
	}
	return all, errors.Join(errs...)
}

func (m *mutant) set(line string) (err error) {
	key, value, _ := strings.Cut(line, " ")
	switch key {
	case "in":
		place, operation, _ := strings.Cut(value, ": ")
		base := strings.LastIndex(place, "/") + 1
		last, function, _ := strings.Cut(place[base:], ".")
		m.folder, m.function, m.pkg = place[:base]+last, function, place[:base]+last
		m.change, err = parse(operation)
	case "by":
		pkg, tests, other := strings.Cut(value, ": ")
		if other {
			m.pkg, value = pkg, tests
		}
		m.tests = strings.Fields(value)
	case "run":
		m.run = strings.Fields(value)
	default:
		err = fmt.Errorf("%q is neither in, by nor run", key)
	}
	return err
}
