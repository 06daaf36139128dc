package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/testing/untested"
)

const root = "../../.."

// make mutants runs the mutants, which takes minutes. This test only checks, with every change, that each mutant still
// applies, and that what it makes has no wrong names and types.
func TestEachMutantStillApplies(t *testing.T) {
	all, err := read(table)
	require.NoError(t, err)
	folders := map[string][]mutant{}
	for _, m := range all {
		folders[m.folder] = append(folders[m.folder], m)
	}
	for folder, mutants := range folders {
		for _, err := range mistakes(t, filepath.Join(root, folder), mutants) {
			assert.NoError(t, err)
		}
	}
}

// mistakes checks the types of a package to which the mutants' functions are added, each as it was and as it becomes, under
// names of their own. The code of all other functions, and the packages that it imports, are left out: a function that
// needs these may have mistakes as it was.
func mistakes(t *testing.T, folder string, mutants []mutant) (all []error) {
	files := token.NewFileSet()
	var parsed []*ast.File
	add := func(name string, content any) *ast.File {
		f, err := parser.ParseFile(files, name, content, parser.SkipObjectResolution)
		require.NoError(t, err)
		parsed = append(parsed, f)
		return f
	}
	paths, err := filepath.Glob(filepath.Join(folder, "*.go"))
	require.NoError(t, err)
	for _, path := range paths {
		if !strings.HasSuffix(path, "_test.go") {
			for _, d := range add(path, nil).Decls {
				if f, ok := d.(*ast.FuncDecl); ok {
					f.Body = nil
				}
			}
		}
	}
	for i, m := range mutants {
		path, changed, err := m.apply(root)
		if err != nil {
			all = append(all, err)
			continue
		}
		source, err := os.ReadFile(path)
		require.NoError(t, err)
		for when, content := range map[string][]byte{"before": source, "after": changed} {
			f := add(when+m.name, content)
			one := find(f, m.function)
			one.Name.Name = fmt.Sprint(when, i)
			f.Decls = slices.DeleteFunc(f.Decls, func(d ast.Decl) bool {
				g, ok := d.(*ast.GenDecl)
				return d != one && (!ok || g.Tok != token.IMPORT)
			})
		}
	}
	said := map[string][]string{} // :: file → mistakes
	check := types.Config{Importer: nothing{}, Error: func(err error) {
		e := err.(types.Error)
		said[e.Fset.Position(e.Pos).Filename] = append(said[e.Fset.Position(e.Pos).Filename], e.Msg)
	}}
	_, _ = check.Check(folder, files, parsed, nil)
	for _, m := range mutants {
		for _, msg := range said["after"+m.name] {
			isAboutImports := strings.HasPrefix(msg, "could not import") || strings.HasSuffix(msg, "imported and not used")
			if !isAboutImports && !slices.Contains(said["before"+m.name], msg) {
				all = append(all, fmt.Errorf("%s does not compile: %s", m.name, msg))
			}
		}
	}
	return all
}

// nothing imports no package.
type nothing struct{}

func (nothing) Import(string) (*types.Package, error) { return nil, errors.New("left out") }

// sources returns all test files of the repository, the testbed's too.
func sources(t *testing.T) string {
	var all strings.Builder
	require.NoError(t, filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, "_test.go") {
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			all.Write(data)
		}
		return err
	}))
	return all.String()
}

// Each test that the docs name exists.
func TestDocsNameTestsThatExist(t *testing.T) {
	all := sources(t)
	for _, doc := range []string{"security.md", "evidence/robustness.md"} {
		data, err := os.ReadFile(filepath.Join(root, "docs", doc))
		require.NoError(t, err)
		names := regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w{5,}`).FindAllString(string(data), -1)
		require.NotEmpty(t, names)
		for _, name := range names {
			assert.Contains(t, all, "func "+name, "%s", doc) // or a longer name, as with -run
		}
	}
}

// Each test that the Makefile runs, or leaves out, by its name exists: go test passes if it finds none.
func TestTheMakefileNamesTestsThatExist(t *testing.T) {
	tests := strings.ReplaceAll(strings.Join(regexp.MustCompile(`(?m)^func Test\w+`).FindAllString(sources(t), -1), "\n"), "func ", "")
	patterns := regexp.MustCompile(`(?m)(?:-(?:run|skip) |^(?:COMPUTES|ARM64_\w+) := )'?([^'\s]+)`)
	for _, file := range []string{"Makefile", ".ci/next"} {
		text, err := os.ReadFile(filepath.Join(root, file))
		require.NoError(t, err)
		found := patterns.FindAllStringSubmatch(strings.ReplaceAll(string(text), "$$", "$"), -1)
		require.NotEmpty(t, found, file)
		for _, match := range found {
			for name := range strings.SplitSeq(match[1], "|") {
				if name != "^$" && !strings.HasPrefix(name, "$(") { // none, and a variable, whose names are found by themselves
					assert.True(t, regexp.MustCompile("(?m)"+name).MatchString(tests), "%s names %s: there is no such test", file, name)
				}
			}
		}
	}
}

// module writes a module with a function, whose result one test checks and another ignores.
func module(t *testing.T) runner {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module example.com\n\ngo 1.24\n",
		"double/double.go": `package double

func Double(n int) int {
	return 2 * n
}
`,
		"double/double_test.go": `package double

import "testing"

func TestTwoBecomesFour(t *testing.T) {
	if Double(2) != 4 {
		t.Fail()
	}
}

func TestItDoesNotPanic(*testing.T) { Double(2) }
`,
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return runner(dir)
}

func made(t *testing.T, text string) []mutant {
	all, err := read(text)
	require.NoError(t, err)
	return all
}

func TestAnUnnoticedMutantIsAnError(t *testing.T) {
	untested.TakesLong(t)
	const triples = "it: It triples.\n\tin double.Double: swap 2: 3\n\tby "
	for name, c := range map[string]struct{ text, want string }{
		"noticed":             {triples + "TestTwoBecomesFour\n", ""},
		"not noticed":         {triples + "TestItDoesNotPanic\n", "not noticed by TestItDoesNotPanic"},
		"noticed by one":      {triples + "TestTwoBecomesFour TestItDoesNotPanic\n", "not noticed by TestItDoesNotPanic"},
		"noticed by no other": {triples + "TestMain\n\trun TestTwoBecomesFour\n", "not noticed by TestMain"},
		"does not compile":    {strings.Replace(triples, ": 3", ": three", 1) + "TestTwoBecomesFour\n", "does not compile"},
		"no such test":        {triples + "TestIt\n", "no test TestIt"},
		"no such function":    {strings.Replace(triples, ".Double", ".Twice", 1) + "TestTwoBecomesFour\n", "double has no function Twice"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := module(t).run(made(t, c.text), io.Discard)
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.want)
		})
	}
}
