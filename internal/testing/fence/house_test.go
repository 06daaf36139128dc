package fence

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/testing/markdown"
)

// The table of packages is between these lines of docs/architecture.md.
const (
	root         = "../../.."
	architecture = root + "/docs/architecture.md"
	tableBegin   = "<!-- counted by go test ./internal/testing/fence -update -->\n"
	tableEnd     = "<!-- to here -->\n"
)

var update = flag.Bool("update", false, "write the table of packages into docs/architecture.md")

// A room is the counts of a package. All fields but tests count without its tests.
type room struct {
	name            string
	files           int
	lines           int
	exported        int // exported names at the top level
	imports         []string
	tests           int // lines of tests; of a package that only tests use, all lines
	floor, importUp int
}

// count counts the packages of the module.
func count(t *testing.T) []*room {
	t.Helper()
	rooms := map[string]*room{}
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && d.Name() != ".." && path != root):
			return filepath.SkipDir
		case !strings.HasSuffix(path, ".go"):
			return nil
		}
		name, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		if rooms[name] == nil {
			rooms[name] = &room{name: filepath.ToSlash(name)}
		}
		return rooms[name].add(path)
	}))
	var all []*room
	for _, r := range rooms {
		r.importUp = len(slices.DeleteFunc(slices.Clone(r.imports), func(p string) bool { return mayImport(r.name, p) }))
		all = append(all, r)
	}
	for _, r := range all {
		if r.forTests() {
			r.tests, r.lines = r.tests+r.lines, 0
		}
	}
	floors := map[string]int{}
	var floor func(r *room) int
	floor = func(r *room) int {
		if _, done := floors[r.name]; !done {
			floors[r.name] = 0
			for _, p := range r.imports {
				floors[r.name] = max(floors[r.name], 1+floor(rooms[filepath.FromSlash(p)]))
			}
		}
		return floors[r.name]
	}
	for _, r := range all {
		r.floor = floor(r)
	}
	slices.SortFunc(all, func(a, b *room) int {
		if a.floor != b.floor {
			return a.floor - b.floor
		}
		return strings.Compare(a.name, b.name)
	})
	return all
}

// add counts a file.
func (r *room) add(path string) error {
	src, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	lines := strings.Count(string(src), "\n")
	if strings.HasSuffix(path, "_test.go") {
		r.tests += lines
		return nil
	}
	r.files++
	r.lines += lines
	file, err := parser.ParseFile(token.NewFileSet(), path, src, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	for _, i := range file.Imports {
		imported, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			return err
		}
		if ours, ok := strings.CutPrefix(imported, module); ok && !slices.Contains(r.imports, ours) {
			r.imports = append(r.imports, ours)
		}
	}
	if file.Name.Name == "main" {
		return nil
	}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil && d.Name.IsExported() {
				r.exported++
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					if s.Name.IsExported() {
						r.exported++
					}
				case *ast.ValueSpec:
					for _, name := range s.Names {
						if name.IsExported() {
							r.exported++
						}
					}
				}
			}
		}
	}
	return nil
}

// forTests reports whether only tests and development commands use a package, not the program or a
// library.
func (r *room) forTests() bool { return wingOf(r.name) == "internal/testing" }

// inTable reports whether the table lists a package. It lists the packages of criproxy, not those
// of the testbed, nor the few lines that describe a wing.
func (r *room) inTable() bool {
	return r.files > 0 && r.lines+r.tests > 20 && !strings.HasPrefix(r.name, "testbed")
}

func (r *room) row() string {
	return fmt.Sprintf("| %d | `%s` | %d | %d | %d | %d | %d |\n", r.floor, r.name, r.files, r.lines, r.exported, r.tests, r.importUp)
}

// Numbers of lines may differ by a tenth, or by a hundred, before the table must be updated.
func TestArchitectureHasTheTableOfPackages(t *testing.T) {
	rooms := slices.DeleteFunc(count(t), func(r *room) bool { return !r.inTable() })
	table := "| floor | package | files | lines | exported | test lines | imports up |\n|---|---|---|---|---|---|---|\n"
	for _, r := range rooms {
		table += r.row()
	}
	if *update {
		require.NoError(t, markdown.Between(architecture, tableBegin, tableEnd, table))
	}
	data, err := os.ReadFile(architecture)
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(data), tableBegin)
	was, _, ok := strings.Cut(rest, tableEnd)
	require.True(t, ok, "%s has no lines %q and %q", architecture, tableBegin, tableEnd)
	const again = "count again: go test ./internal/testing/fence -update"
	stands := map[string][]int{}
	for _, m := range regexp.MustCompile("(?m)^\\| (\\d+) \\| `(.*)` \\| (\\d+) \\| (\\d+) \\| (\\d+) \\| (\\d+) \\| (\\d+) \\|$").FindAllStringSubmatch(was, -1) {
		for _, n := range append([]string{m[1]}, m[3:]...) {
			x, err := strconv.Atoi(n)
			require.NoError(t, err)
			stands[m[2]] = append(stands[m[2]], x)
		}
	}
	near := func(was, is int) bool { return max(was-is, is-was) <= max(100, is/10) }
	for _, r := range rooms {
		assert.Zero(t, r.importUp, "%s imports %v, some of which are not below it: see mayImport", r.name, r.imports)
		s := stands[r.name]
		delete(stands, r.name)
		if assert.NotEmpty(t, s, "%s is not in the table; %s", r.name, again) {
			assert.Equal(t, r.floor, s[0], "floor of %s; %s", r.name, again)
			assert.True(t, near(s[2], r.lines) && near(s[4], r.tests), "%s has %d lines and %d of tests; %s", r.name, r.lines, r.tests, again)
		}
	}
	assert.Empty(t, stands, "these packages are gone; %s", again)
}

func TestPackagesForTestsAreNotInTheProgram(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", module+"cmd/criproxy", module+"director", module+"criadapter", module+"hook/plugin").Output()
	require.NoError(t, err)
	linked := strings.Fields(string(out))
	for _, r := range count(t) {
		if strings.HasPrefix(r.name, "internal/") && r.inTable() {
			assert.Equal(t, !slices.Contains(linked, module+r.name), r.forTests(), r.name)
		}
	}
}

// A newcomer must be able to hold the house in mind.
func TestTheHouseIsSmall(t *testing.T) {
	packages, floors := 0, 0
	for _, r := range count(t) {
		if r.inTable() && !r.forTests() && !strings.HasSuffix(r.name, "/example") {
			packages++
			floors = max(floors, 1+r.floor)
		}
	}
	assert.LessOrEqual(t, packages, 35, "packages of the product, without its examples")
	assert.LessOrEqual(t, floors, 10)
}
