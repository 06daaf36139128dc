package main

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/testing/untested"
)

const root = "../../.."

// make mutants runs the mutants, which takes minutes. This test only checks, with every change, that
// each mutant still applies.
func TestEachMutantStillApplies(t *testing.T) {
	all, err := read(os.DirFS("testdata"))
	require.NoError(t, err)
	for _, m := range all {
		_, _, err := m.apply(root)
		assert.NoError(t, err)
	}
}

func TestAMutantAppliesWhateverTheLinesLookLike(t *testing.T) {
	dir := t.TempDir()
	source := "package p\n\nfunc f(a int) int {\n\t\tif a > 0 { // it is\n\t\t\treturn g(a,\n\t\t\t\t\"b  c\")\n\t\t}\n\treturn 1\n}\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "f.go"), []byte(source), 0o600))
	m := mutant{name: "it", file: "f.go", old: []byte("\tif a > 0 {\n\t\treturn g(a, \"b  c\")\n\t}\n"), new: []byte("\treturn 2\n")}
	_, changed, err := m.apply(dir)
	require.NoError(t, err)
	assert.Equal(t, "package p\n\nfunc f(a int) int {\n\t\treturn 2\n\treturn 1\n}\n", string(changed))
	m.old = []byte(`g(a, "b c")`)
	_, _, err = m.apply(dir)
	assert.ErrorContains(t, err, "has the old code 0 times", "a text is one token")
	m.old = []byte("return")
	_, _, err = m.apply(dir)
	assert.ErrorContains(t, err, "has the old code 2 times")
}

func TestAMutantAppliesToRenamedVariables(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "f.go"), []byte("package p\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "g.go"), []byte("package p\n\nfunc f(n, most int) bool { return g(n) && n < s.n+most }\n"), 0o600))
	m := mutant{name: "it", file: "f.go", old: []byte("return g(i) && i < s.n+max"), new: []byte("return i < s.n+max+i.max")}
	file, changed, err := m.apply(dir)
	require.NoError(t, err)
	assert.Equal(t, "g.go", filepath.Base(file))
	assert.Equal(t, "package p\n\nfunc f(n, most int) bool { return n < s.n+most+n.max }\n", string(changed))
	for _, other := range []string{"g(i) && j < s.n+max", "g(i) && max < s.n+max", "h(i) && i < s.n+max", "g(i) && i < s.i+max"} {
		m.old = []byte("return " + other)
		_, _, err = m.apply(dir)
		assert.ErrorContains(t, err, "has the old code 0 times", other)
	}
}

// Each test that the docs name exists.
func TestDocsNameTestsThatExist(t *testing.T) {
	var sources strings.Builder
	require.NoError(t, filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, "_test.go") {
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			sources.Write(data)
		}
		return err
	}))
	all := sources.String()
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

// module writes a module with a function, whose result one test checks and another ignores.
func module(t *testing.T) runner {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module example.com/double\n\ngo 1.24\n",
		"double.go": `package double

func Double(n int) int {
	return 2 * n
}
`,
		"double_test.go": `package double

import "testing"

func TestTwoBecomesFour(t *testing.T) {
	if Double(2) != 4 {
		t.Fail()
	}
}

func TestItDoesNotPanic(*testing.T) { Double(2) }
`,
		"internal/testing/model/model_test.go": `package model

import (
	"flag"
	"testing"

	"example.com/double"
)

var (
	seed  = flag.Int("model.seed", 0, "")
	seeds = flag.Int("model.seeds", 0, "")
	early = flag.Bool("model.early", false, "")
)

func TestWhatKubeletGetsIsTrue(t *testing.T) {
	if (*seed == 7 || *early) && *seeds > 1 && double.Double(2) != 4 {
		t.Fail()
	}
}
`,
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return runner(dir)
}

func made(t *testing.T, text string) []mutant {
	all, err := read(fstest.MapFS{"it.txtar": {Data: []byte(text)}})
	require.NoError(t, err)
	return all
}

func TestAnUnnoticedMutantIsAnError(t *testing.T) {
	untested.TakesLong(t)
	const triple = "It triples.\nfile: double.go\n"
	const change = "-- old --\n\treturn 2 * n\n-- new --\n"
	for name, c := range map[string]struct{ text, want string }{
		"noticed":              {triple + "tests: TestTwoBecomesFour\n" + change + "\treturn 3 * n\n", ""},
		"not noticed":          {triple + "tests: TestItDoesNotPanic\n" + change + "\treturn 3 * n\n", "not noticed by TestItDoesNotPanic"},
		"noticed by one":       {triple + "tests: TestTwoBecomesFour TestItDoesNotPanic\n" + change + "\treturn 3 * n\n", "not noticed by TestItDoesNotPanic"},
		"noticed by no other":  {triple + "tests: TestMain\nrun: TestTwoBecomesFour\n" + change + "\treturn 3 * n\n", "not noticed by TestMain"},
		"noticed by the model": {triple + "tests: TestTwoBecomesFour\nmodel: 7\n" + change + "\treturn 3 * n\n", ""},
		"noticed with a flag":  {triple + "tests: TestTwoBecomesFour\nmodel: 8 -model.early\n" + change + "\treturn 3 * n\n", ""},
		"not by the model":     {triple + "tests: TestTwoBecomesFour\nmodel: 8\n" + change + "\treturn 3 * n\n", "the model did not notice it with -model.seed=8"},
		"does not compile":     {triple + "tests: TestTwoBecomesFour\n" + change + "\treturn three\n", "does not compile"},
		"no such test":         {triple + "tests: TestIt\n" + change + "\treturn 3 * n\n", "no test TestIt"},
		"no such lines":        {triple + "tests: TestTwoBecomesFour\n-- old --\n\treturn n + n\n-- new --\n", "has the old code 0 times"},
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

func TestMalformedMutantsAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"It.\nfile: f.go\ntests: TestA\n-- old --\na\n-- new --\na\n":    "different parts old and new",
		"It.\ntests: TestA\n-- old --\na\n-- new --\n":                   "want a description, file",
		"It.\nfile: f.go\nteets: TestA\n-- old --\na\n-- new --\n":       `"teets" is neither`,
		"It.\nfile: f.go\ntests: TestA\n-- olde --\na\n-- new --\n":      `unknown part "olde"`,
		"It.\nAnd it.\nfile: f.go\ntests: TestA\n-- old --\n-- new --\n": `"And it." is neither`,
	} {
		_, err := read(fstest.MapFS{"it.txtar": {Data: []byte(text)}})
		assert.ErrorContains(t, err, want)
	}
	_, err := read(fstest.MapFS{})
	assert.ErrorContains(t, err, "no mutants here")
}
