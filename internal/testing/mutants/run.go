package main

import (
	"bufio"
	"bytes"
	"context"
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
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// testLimit bounds one go test: -timeout bounds the tests, and not what they wait for before and after.
const testLimit = 10 * time.Minute

// runner runs the tests of a repository. Its value is the root of the repository.
type runner string

// wholePackage is the name of a failure that TestMain finds after all tests have passed.
const wholePackage = "TestMain"

// atOnce is how many mutants run at the same time: most tests wait more than they compute.
const atOnce = 2

// run runs all mutants, and prints the outcome of each to out. Its error names the mutants that not
// all of their tests have noticed.
func (r runner) run(all []mutant, out io.Writer) error {
	if err := r.healthy(all); err != nil {
		return err
	}
	errs := make([]error, len(all))
	var printing sync.Mutex
	var group errgroup.Group
	group.SetLimit(atOnce)
	for i, m := range all {
		group.Go(func() error {
			began, word := time.Now(), "noticed"
			if err := r.one(m); err != nil {
				word, errs[i] = "SURVIVED", fmt.Errorf("%s: %w", m.name, err)
			}
			printing.Lock()
			defer printing.Unlock()
			fmt.Fprintf(out, "%-9s %-40s %5.1fs\n", word, m.name, time.Since(began).Seconds())
			return nil
		})
	}
	_ = group.Wait() // errs has what it would return
	return errors.Join(errs...)
}

// healthy returns an error unless all tests pass without a mutant: otherwise a failure with one
// would prove nothing.
func (r runner) healthy(all []mutant) error {
	tests := map[string][]string{} // :: package → tests
	for _, m := range all {
		tests[m.pkg] = append(tests[m.pkg], m.selected()...)
	}
	for _, pkg := range slices.Sorted(maps.Keys(tests)) {
		failed, said, err := r.test("./"+pkg, tests[pkg], "")
		if err != nil {
			return err
		}
		if len(failed) > 0 {
			return fmt.Errorf("%s: %s fails even without a mutant:\n%s", pkg, strings.Join(failed, ", "), said)
		}
	}
	return nil
}

// selected returns the tests to run, without TestMain, which always runs.
func (m mutant) selected() []string {
	return slices.DeleteFunc(append(slices.Clone(m.tests), m.run...), func(name string) bool { return name == wholePackage })
}

// one runs a mutant. A nil error means that all its tests have noticed it.
func (r runner) one(m mutant) error {
	source, changed, err := m.apply(string(r))
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	source, err = filepath.Abs(source)
	if err != nil {
		return err
	}
	file, overlay := filepath.Join(dir, filepath.Base(source)), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{source: file}})
	if err != nil {
		return err
	}
	if err := errors.Join(os.WriteFile(file, changed, 0o600), os.WriteFile(overlay, replace, 0o600)); err != nil {
		return err
	}
	failed, said, err := r.test("./"+m.pkg, m.selected(), overlay)
	if err != nil {
		return err
	}
	if blind := slices.DeleteFunc(slices.Clone(m.tests), func(name string) bool { return slices.Contains(failed, name) }); len(blind) > 0 {
		return fmt.Errorf("%s: not noticed by %s of %s; the output:\n%s", m.broken, strings.Join(blind, ", "), m.pkg, said)
	}
	return nil
}

// event is a line of go test -json: cmd/test2json.
type event struct {
	Action, Test, Output string
}

// test runs tests of a package, with an overlay unless that is empty. It returns the tests that failed, and
// the output. An error means that the tests could not run.
func (r runner) test(pkg string, tests []string, overlay string) (failed []string, said string, err error) {
	pattern := make([]string, len(tests))
	for i, name := range tests {
		pattern[i] = regexp.QuoteMeta(name)
	}
	args := []string{"test", "-json", "-count=1", "-vet=off", "-timeout=3m", "-run", "^(" + strings.Join(pattern, "|") + ")$"}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	ctx, cancel := context.WithTimeout(context.Background(), testLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", append(args, pkg)...)
	cmd.Dir, cmd.WaitDelay = string(r), time.Minute // what go started may hold the output open
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
			e.Output = string(line) // printed by go itself
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
			failed = slices.AppendSeq(failed, maps.Keys(under)) // these hang, or a panic ended them
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
	if len(failed) > 1 && slices.Contains(failed, wholePackage) { // the package fails because of the others
		failed = slices.DeleteFunc(failed, func(name string) bool { return name == wholePackage })
	}
	return failed, text.String(), nil
}
