package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// modelTest is the test of internal/model that takes a seed.
const modelTest = "TestWhatKubeletGetsIsTrue"

// modelSeeds is how many seeds may pass before one notices: goroutines of one seed run in an order of their own each time.
const modelSeeds = 60

// runner is the root of the repository whose tests it runs.
type runner string

// wholePackage stands for what a package's TestMain finds when all tests have passed.
const wholePackage = "TestMain"

// run runs all mutants, and says what became of each. Its error names those that no test
// has noticed, or not all that should have.
func (r runner) run(all []mutant, out io.Writer) error {
	if err := r.healthy(all); err != nil {
		return err
	}
	var errs []error
	for _, m := range all {
		began := time.Now()
		err := r.one(m)
		word := "noticed"
		if err != nil {
			word = "SURVIVED"
			errs = append(errs, fmt.Errorf("%s: %w", m.name, err))
		}
		fmt.Fprintf(out, "%-9s %-40s %5.1fs\n", word, m.name, time.Since(began).Seconds())
	}
	return errors.Join(errs...)
}

// healthy returns an error unless all tests pass where nothing is broken: else that they
// fail would say nothing.
func (r runner) healthy(all []mutant) error {
	tests := map[string][]string{} // :: package → tests
	for _, m := range all {
		tests[m.pkg] = append(tests[m.pkg], m.selected()...)
	}
	for _, pkg := range slices.Sorted(maps.Keys(tests)) {
		failed, said, err := r.test(pkg, tests[pkg], "")
		if err != nil {
			return err
		}
		if len(failed) > 0 {
			return fmt.Errorf("%s: %s fails although nothing is broken:\n%s", pkg, strings.Join(failed, ", "), said)
		}
	}
	return nil
}

// selected are the tests that are run, TestMain not among them, which always is.
func (m mutant) selected() []string {
	return slices.DeleteFunc(append(slices.Clone(m.tests), m.run...), func(name string) bool { return name == wholePackage })
}

// one runs a mutant. A nil error means that all tests that should have noticed it have.
func (r runner) one(m mutant) error {
	changed, err := m.apply(string(r))
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	root, err := filepath.Abs(string(r))
	if err != nil {
		return err
	}
	file, overlay := filepath.Join(dir, filepath.Base(m.file)), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(root, m.file): file}})
	if err != nil {
		return err
	}
	if err := errors.Join(os.WriteFile(file, changed, 0o600), os.WriteFile(overlay, replace, 0o600)); err != nil {
		return err
	}
	failed, said, err := r.test(m.pkg, m.selected(), overlay)
	if err != nil {
		return err
	}
	if len(m.model) > 0 {
		flags := append([]string{"-model.seed=" + m.model[0], fmt.Sprint("-model.seeds=", modelSeeds)}, m.model[1:]...)
		modelFailed, modelSaid, err := r.test("./internal/model", []string{modelTest}, overlay, flags...)
		if err != nil {
			return err
		}
		if len(modelFailed) == 0 {
			return fmt.Errorf("%s: not noticed by the model with %s, which said:\n%s", m.broken, strings.Join(flags, " "), modelSaid)
		}
	}
	if blind := slices.DeleteFunc(slices.Clone(m.tests), func(name string) bool { return slices.Contains(failed, name) }); len(blind) > 0 {
		return fmt.Errorf("%s: not noticed by %s of %s, which said:\n%s", m.broken, strings.Join(blind, ", "), m.pkg, said)
	}
	return nil
}

// event is a line of go test -json: cmd/test2json.
type event struct {
	Action, Test, Output string
}

// test runs tests of a package, with an overlay unless that is empty and the package's own
// flags, and returns which of them failed and what was said. An error means that they could
// not be run.
func (r runner) test(pkg string, tests []string, overlay string, flags ...string) (failed []string, said string, err error) {
	pattern := make([]string, len(tests))
	for i, name := range tests {
		pattern[i] = regexp.QuoteMeta(name)
	}
	args := []string{"test", "-json", "-count=1", "-vet=off", "-timeout=3m", "-run", "^(" + strings.Join(pattern, "|") + ")$"}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.Command("go", append(append(args, pkg), flags...)...)
	cmd.Dir = string(r)
	out, runErr := cmd.CombinedOutput()
	var text strings.Builder
	ran, under := map[string]bool{}, map[string]bool{}
	for lines := bufio.NewReader(bytes.NewReader(out)); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break
		}
		var e event
		if json.Unmarshal(line, &e) != nil {
			e.Output = string(line) // of go itself
		}
		text.WriteString(e.Output)
		switch {
		case e.Action == "build-fail":
			return nil, "", fmt.Errorf("%s does not compile:\n%s", pkg, text.String())
		case e.Action == "run":
			ran[e.Test], under[e.Test] = true, true
		case e.Action == "pass" || e.Action == "skip":
			delete(under, e.Test)
		case e.Action == "fail" && e.Test == "":
			failed = append(failed, wholePackage)
			failed = slices.AppendSeq(failed, maps.Keys(under)) // they hang, or a panic ended them
		case e.Action == "fail":
			delete(under, e.Test)
			failed = append(failed, e.Test)
		}
	}
	for _, name := range tests {
		if !ran[name] && len(failed) == 0 {
			return nil, "", fmt.Errorf("%s has no test %s (%v):\n%s", pkg, name, runErr, text.String())
		}
	}
	if len(failed) > 1 && slices.Contains(failed, wholePackage) { // because of them
		failed = slices.DeleteFunc(failed, func(name string) bool { return name == wholePackage })
	}
	return failed, text.String(), nil
}
