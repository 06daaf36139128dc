package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/rogpeppe/go-internal/txtar"
)

// A mutant is one change of a source file that causes a defect. Its file is a txtar: one sentence
// that says what is broken, then
//
//	file: director/fanout.go      the source file to change
//	package: ./cmd/criproxy       the package whose tests must notice; by default, the file's own
//	tests: TestA TestB            tests that must fail, each of them
//	run: TestC                    further tests to run
//	model: 1007                   internal/testing/model must notice it too, from this seed on; flags may follow
//	-- old --                     lines that occur once in the file
//	-- new --                     lines that replace them
//
// The test name TestMain stands for the package as a whole: it fails, although all its tests pass,
// if they leave goroutines behind.
type mutant struct {
	name     string
	broken   string
	file     string
	pkg      string
	tests    []string
	run      []string
	model    []string // a seed and flags of the model; empty if the model need not notice
	old, new []byte
}

// read returns the mutants of a folder, sorted by name. Its error names every mistake.
func read(dir fs.FS) ([]mutant, error) {
	files, err := fs.Glob(dir, "*.txtar")
	if err != nil {
		return nil, err
	}
	var all []mutant
	var errs []error
	for _, file := range files {
		data, err := fs.ReadFile(dir, file)
		if err != nil {
			return nil, err
		}
		m, err := parse(strings.TrimSuffix(file, ".txtar"), data)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", file, err))
		}
		all = append(all, m)
	}
	if len(all) == 0 {
		errs = append(errs, errors.New("found no mutants here; run this in the root of the repository"))
	}
	return all, errors.Join(errs...)
}

func parse(name string, data []byte) (mutant, error) {
	m := mutant{name: name}
	a := txtar.Parse(data)
	for line := range strings.Lines(string(a.Comment)) {
		key, value, isKey := strings.Cut(strings.TrimSpace(line), ": ")
		switch {
		case key == "":
		case !isKey && m.broken == "":
			m.broken = key
		case key == "file":
			m.file = value
		case key == "package":
			m.pkg = value
		case key == "tests":
			m.tests = strings.Fields(value)
		case key == "run":
			m.run = strings.Fields(value)
		case key == "model":
			m.model = strings.Fields(value)
		default:
			return m, fmt.Errorf("%q is neither the description nor file, package, tests, run or model", key)
		}
	}
	for _, f := range a.Files {
		switch f.Name {
		case "old":
			m.old = f.Data
		case "new":
			m.new = f.Data
		default:
			return m, fmt.Errorf("unknown part %q; want old and new", f.Name)
		}
	}
	if m.broken == "" || m.file == "" || len(m.tests) == 0 || len(m.old) == 0 || bytes.Equal(m.old, m.new) {
		return m, errors.New("want a description, file, tests, and different parts old and new")
	}
	if m.pkg == "" {
		m.pkg = "./" + path.Dir(m.file)
	}
	return m, nil
}

// apply returns the changed content of the mutant's file; root is the root of the repository.
func (m mutant) apply(root string) ([]byte, error) {
	source, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.name, err)
	}
	if n := bytes.Count(source, m.old); n != 1 {
		return nil, fmt.Errorf("%s: %s has the old lines %d times, want once; change %s/%s.txtar as the source has changed", m.name, m.file, n, folder, m.name)
	}
	return bytes.Replace(source, m.old, m.new, 1), nil
}
