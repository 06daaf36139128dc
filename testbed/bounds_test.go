package testbed_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/testing/endless"
)

// unbounded are functions that wait as long as their context or their command, and why that has an end. Each is used.
var unbounded = map[string]string{
	"build.goBuild":          "build bounds it",
	"build.cBuild":           "goBuild calls it",
	"build.apply":            "build bounds it",
	"host.kill":              "Clean bounds it",
	"host.unmount":           "Clean bounds it",
	"host.removeCgroup":      "Clean bounds it",
	"internal/guest.execute": "it runs in a virtual machine, whose side of the port has the bound",
	"testbed.pause":          "it ends after its delay",

	"integration.TestPortForwardReachesThePod": "it waits for the forwarding with a bound",
}

// modules are the modules in this one that have tests. They start no runtime: their TestMain calls bounded.Run.
var modules = []string{"browser", "csi", "fleet", "transport"}

// mayEndElsewhere are files of tests whose other goroutines may call require, and why nothing waits for them then.
var mayEndElsewhere = map[string]string{
	"integration/identity_test.go": "its channels are closed when the goroutine ends",
}

// The context of a test has no deadline, and context.Background neither. So each function of the testbed that waits for a
// context to end, for a command or for a stream makes a bound of its own, and its callers need not think of it (issue 44).
func TestEveryWaitOfTheTestbedHasABound(t *testing.T) {
	used := map[string]bool{}
	allowed := func(file, function string) bool {
		room := filepath.ToSlash(filepath.Dir(file))
		if room == "." {
			room = "testbed"
		}
		used[room+"."+function] = true
		return unbounded[room+"."+function] != ""
	}
	t.Run("helpers", func(t *testing.T) { helpersBoundTheirWaits(t, allowed) })
	t.Run("commands, streams and HTTP", func(t *testing.T) { waitsEnd(t, allowed) })
	for function := range unbounded {
		assert.True(t, used[function], "%s has a bound, or is gone: take it from the list", function)
	}
}

func helpersBoundTheirWaits(t *testing.T, allowed func(file, function string) bool) {
	each(t, func(file string, fset *token.FileSet, tree *ast.File) {
		room := filepath.Dir(file)
		helpers := slices.Contains(append(modules, rooms...), room) || strings.HasPrefix(room, "internal/") || room == "vm"
		if strings.HasSuffix(file, "_test.go") || !helpers {
			return
		}
		for _, d := range tree.Decls {
			name, waits, bounded := "a variable", "", false
			if f, ok := d.(*ast.FuncDecl); ok {
				name = f.Name.Name
			}
			ast.Inspect(d, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				switch called := types.ExprString(call.Fun); {
				case strings.HasSuffix(called, ".Done") && strings.Contains(strings.ToLower(called), "ctx"), called == "exec.CommandContext", strings.HasSuffix(called, ".StreamWithContext"):
					waits = fmt.Sprintf("%s: %s", fset.Position(n.Pos()), called)
				case called == "Bounded", called == "bounded", called == "host.Bounded", called == "context.WithTimeout", called == "context.WithDeadline":
					bounded = true
				}
				return true
			})
			if waits != "" && !bounded && !allowed(file, name) {
				t.Errorf("%s in %s waits as long as its context, which may have no end: begin with host.Bounded", waits, name)
			}
		}
	})
}

// A command that a test waits for ends after a while, whatever it does, and so do streams and requests over HTTP. A command
// that the same function starts goes on until the test ends it, or testbed.Main: in the modules without it, every command
// has a bound. There gRPC calls end with the process that they wait for.
func waitsEnd(t *testing.T, allowed func(file, function string) bool) {
	each(t, func(file string, fset *token.FileSet, tree *ast.File) {
		room := filepath.Dir(file)
		program := !strings.HasSuffix(file, "_test.go") && !strings.HasPrefix(file, "internal/") && !slices.Contains(rooms, room)
		for _, w := range endless.Waits(tree) {
			ends := program || w.Started && !slices.Contains(modules, room) // a program ends with its user
			if !(w.Command && ends) && !allowed(file, w.Function) {
				t.Errorf("%s: %s may wait for ever: %s", fset.Position(w.Pos), w.Function, w.Cure)
			}
		}
	})
}

// require ends the goroutine that calls it. In the condition of testify's Eventually and in any other goroutine of a test
// that is not the test: the wait goes on to its bound, and then says something else (issue 44). The conditions of
// host.Poll and host.Await run in the goroutine of their caller.
func TestOnlyTestsEndThemselves(t *testing.T) {
	each(t, func(file string, fset *token.FileSet, tree *ast.File) {
		if mayEndElsewhere[filepath.ToSlash(file)] != "" {
			return
		}
		elsewhere := func(n ast.Node) {
			ast.Inspect(n, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				called := types.ExprString(call.Fun)
				usesTest := slices.ContainsFunc(call.Args, func(arg ast.Expr) bool { return types.ExprString(arg) == "t" })
				if usesTest && !strings.HasPrefix(called, "assert.") || strings.HasPrefix(called, "t.Fatal") || called == "t.FailNow" {
					t.Errorf("%s: %s may end another goroutine than the test's: wait with host.Await, or return an error", fset.Position(n.Pos()), called)
				}
				return called != "t.Run" // its test has a goroutine of its own
			})
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				elsewhere(n)
			case *ast.CallExpr:
				called := types.ExprString(n.Fun)
				if slices.Contains([]string{"require.Eventually", "assert.Eventually", "require.Never", "assert.Never"}, called) {
					elsewhere(n.Args[1])
				} else if strings.HasSuffix(called, ".Go") {
					elsewhere(n.Args[0])
				}
			}
			return true
		})
	})
}

// each parses every file of this module, and of the modules in it.
func each(t *testing.T, look func(file string, fset *token.FileSet, tree *ast.File)) {
	t.Helper()
	files := 0
	require.NoError(t, filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(file) != ".go" {
			return err
		}
		fset := token.NewFileSet()
		tree, err := parser.ParseFile(fset, file, nil, parser.SkipObjectResolution)
		if err == nil {
			files++
			look(file, fset, tree)
		}
		return err
	}))
	assert.Greater(t, files, 100)
}
