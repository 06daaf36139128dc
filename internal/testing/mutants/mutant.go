package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/txtar"
)

// A mutant is one change of a source file that causes a defect. Its file is a txtar: one sentence
// that says what is broken, then
//
//	file: director/fanout.go      the source file to change, or one that was split off from it in its folder
//	package: ./cmd/criproxy       the package whose tests must notice; by default, the file's own
//	tests: TestA TestB            tests that must fail, each of them
//	run: TestC                    further tests to run
//	model: 1007                   internal/testing/model must notice it too, from this seed on; flags may follow
//	-- old --                     code that occurs once in the file; its comments, its line breaks and what its
//	                              variables are called do not count
//	-- new --                     lines that replace it
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

// apply returns the file that the mutant changes, and its changed content; root is the root of the repository.
func (m mutant) apply(root string) (file string, changed []byte, err error) {
	files, err := filepath.Glob(filepath.Join(root, path.Dir(m.file), "*.go"))
	if err != nil {
		return "", nil, fmt.Errorf("%s: %w", m.name, err)
	}
	own := filepath.Join(root, m.file)
	files = slices.DeleteFunc(files, func(file string) bool { return file == own || strings.HasSuffix(file, "_test.go") })
	files = append([]string{own}, files...)
	for _, renamed := range []bool{false, true} {
		for _, file := range files {
			source, err := os.ReadFile(file)
			if err != nil {
				return "", nil, fmt.Errorf("%s: %w", m.name, err)
			}
			switch changed, n := m.change(source, renamed); {
			case n == 1:
				return file, changed, nil
			case n > 1 && file == own:
				return "", nil, fmt.Errorf("%s: %s has the old code %d times, want once; make the old code in %s/%s.txtar longer", m.name, m.file, n, folder, m.name)
			}
		}
	}
	return "", nil, fmt.Errorf("%s: %s has the old code 0 times, want once; change %s/%s.txtar as the source has changed", m.name, m.file, folder, m.name)
}

// change returns source with the new code in place of the old code, and how often source has the old code. It compares
// tokens: a mutant still applies when lines are indented in another way, broken elsewhere, or explained. If renamed is
// set, the variables may have other names.
func (m mutant) change(source []byte, renamed bool) (changed []byte, n int) {
	all, old := tokensOf(source), tokensOf(m.old)
	for i := range len(all) - len(old) + 1 {
		part := all[i : i+len(old)]
		if names, same := match(old, part, renamed); same && len(part) > 0 {
			last := part[len(part)-1]
			changed = slices.Concat(source[:part[0].at], rename(bytes.TrimSpace(m.new), names), source[last.at+len(last.text):])
			n++
		}
	}
	return changed, n
}

// match compares tokens one by one. names is how the source calls the variables of the mutant.
func match(old, part []goToken, renamed bool) (names map[string]string, same bool) {
	names, back := map[string]string{}, map[string]string{}
	for i, o := range old {
		p := part[i]
		if !renamed || !o.variable || !p.variable {
			if o.text != p.text {
				return nil, false
			}
			continue
		}
		if cmp.Or(names[o.text], p.text) != p.text || cmp.Or(back[p.text], o.text) != o.text {
			return nil, false
		}
		names[o.text], back[p.text] = p.text, o.text
	}
	return names, true
}

// rename gives the variables in code other names.
func rename(code []byte, names map[string]string) []byte {
	var b []byte
	from := 0
	for _, t := range tokensOf(code) {
		if name := names[t.text]; name != "" && t.variable {
			b = append(append(b, code[from:t.at]...), name...)
			from = t.at + len(t.text)
		}
	}
	return append(b, code[from:]...)
}

type goToken struct {
	text     string
	at       int
	variable bool // it may name a variable: it is no field, method or function
}

// tokensOf returns the tokens of Go code, without comments and without the semicolons that ends of lines stand for.
func tokensOf(code []byte) []goToken {
	files := token.NewFileSet()
	file := files.AddFile("", files.Base(), len(code))
	var s scanner.Scanner
	s.Init(file, code, nil, 0)
	var all []goToken
	for {
		pos, tok, text := s.Scan()
		switch {
		case tok == token.EOF:
			return all
		case tok == token.SEMICOLON && text == "\n":
			continue
		case !tok.IsLiteral():
			text = tok.String()
		}
		if last := len(all) - 1; last >= 0 && tok == token.LPAREN {
			all[last].variable = false
		}
		variable := tok == token.IDENT && (len(all) == 0 || all[len(all)-1].text != ".")
		all = append(all, goToken{text, file.Offset(pos), variable})
	}
}
