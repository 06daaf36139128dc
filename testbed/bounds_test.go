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
	t.Run("commands", func(t *testing.T) { commandsEnd(t, allowed) })
	t.Run("streams and HTTP", func(t *testing.T) { streamsEnd(t, allowed) })
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
		for name, body := range functions(tree) {
			waits, bounded := "", false
			ast.Inspect(body, func(n ast.Node) bool {
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

// A command that a test waits for ends after a while, whatever it does: the test makes it with host.Command, or with a
// context that has a deadline. A command that the same function starts goes on until the test ends it, or testbed.Main: in
// the modules without it, every command has a bound. There gRPC calls end with the process that they wait for.
func commandsEnd(t *testing.T, allowed func(file, function string) bool) {
	each(t, func(file string, fset *token.FileSet, tree *ast.File) {
		if !strings.HasSuffix(file, "_test.go") && !strings.HasPrefix(file, "internal/") && !slices.Contains(rooms, filepath.Dir(file)) {
			return // a program, which ends with its user
		}
		for name, body := range functions(tree) {
			contexts := endlessIn(body)
			endless := func(call *ast.CallExpr) bool { return makesEndless(call, contexts) }
			started := map[string]bool{}
			made := map[*ast.CallExpr]string{} // the command → its variable
			ast.Inspect(body, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CallExpr:
					if called, ok := n.Fun.(*ast.SelectorExpr); ok && called.Sel.Name == "Start" {
						started[types.ExprString(called.X)] = true
					}
					if endless(n) {
						made[n] = made[n]
					}
				case *ast.AssignStmt:
					for i, right := range n.Rhs {
						if call, ok := right.(*ast.CallExpr); ok && len(n.Lhs) == len(n.Rhs) {
							made[call] = types.ExprString(n.Lhs[i])
						}
					}
				}
				return true
			})
			for call, variable := range made {
				ends := started[variable] && !slices.Contains(modules, filepath.Dir(file))
				if endless(call) && !ends && !allowed(file, name) {
					t.Errorf("%s: %s waits for a command that may never end: use host.Command, or bounded.Command", fset.Position(call.Pos()), name)
				}
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

// streamsEnd holds that no stream and no request over HTTP, in tests too, waits with a context that has no deadline.
func streamsEnd(t *testing.T, allowed func(file, function string) bool) {
	waits := []string{
		".StreamWithContext", ".GetContainerEvents", ".StreamPodSandboxes", ".StreamContainers", ".StreamContainerStats", ".StreamPodSandboxStats",
		".StreamPodSandboxMetrics", ".StreamImages",
	}
	each(t, func(file string, fset *token.FileSet, tree *ast.File) {
		for name, body := range functions(tree) {
			endless := endlessIn(body)
			bad := func(n ast.Node, advice string) {
				if !allowed(file, name) {
					t.Errorf("%s: %s may wait for ever: %s", fset.Position(n.Pos()), name, advice)
				}
			}
			ast.Inspect(body, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CallExpr:
					called := types.ExprString(n.Fun)
					waits := strings.HasPrefix(called, "interop.Do") || slices.ContainsFunc(waits, func(s string) bool { return strings.HasSuffix(called, s) })
					if waits && len(n.Args) > 0 && endless(n.Args[0]) {
						bad(n, "give it a context with a deadline, as from host.Bounded")
					}
				case *ast.SelectorExpr:
					if slices.Contains([]string{"http.Get", "http.Head", "http.Post", "http.PostForm", "http.DefaultClient"}, types.ExprString(n)) {
						bad(n, "use an http.Client with a Timeout")
					}
				case *ast.CompositeLit:
					bounded := slices.ContainsFunc(n.Elts, func(e ast.Expr) bool {
						pair, ok := e.(*ast.KeyValueExpr)
						return ok && types.ExprString(pair.Key) == "Timeout"
					})
					if n.Type != nil && types.ExprString(n.Type) == "http.Client" && !bounded {
						bad(n, "give it a Timeout")
					}
				}
				return true
			})
		}
	})
}

// endlessIn returns a function that reports whether an expression in a function is a context without a deadline: a test's,
// context.Background, what is made of these without one, or a variable that has never another value.
func endlessIn(body ast.Node) func(ast.Expr) bool {
	variables := map[string]bool{}
	var endless func(ast.Expr) bool
	endless = func(e ast.Expr) bool {
		if name, ok := e.(*ast.Ident); ok {
			return variables[name.Name]
		}
		call, ok := e.(*ast.CallExpr)
		if !ok {
			return false
		}
		switch called := types.ExprString(call.Fun); {
		case called == "context.Background", called == "context.TODO", strings.HasSuffix(called, ".Context"):
			return true
		case called == "context.WithCancel", called == "context.WithValue", called == "context.WithoutCancel", strings.HasPrefix(called, "metadata."):
			return len(call.Args) > 0 && endless(call.Args[0])
		}
		return false
	}
	ast.Inspect(body, func(n ast.Node) bool {
		if assigned, ok := n.(*ast.AssignStmt); ok && len(assigned.Rhs) == 1 {
			name := types.ExprString(assigned.Lhs[0])
			earlier, known := variables[name]
			variables[name] = endless(assigned.Rhs[0]) && (earlier || !known)
		}
		return true
	})
	return endless
}

// makesEndless reports whether a call makes a command that ends with no deadline.
func makesEndless(call *ast.CallExpr, endless func(ast.Expr) bool) bool {
	switch types.ExprString(call.Fun) {
	case "exec.Command":
		return true
	case "exec.CommandContext":
		return endless(call.Args[0])
	}
	return false
}

// functions yields the functions of a file by their names.
func functions(tree *ast.File) func(yield func(string, ast.Node) bool) {
	return func(yield func(string, ast.Node) bool) {
		for _, d := range tree.Decls {
			name := "a variable"
			if f, ok := d.(*ast.FuncDecl); ok {
				name = f.Name.Name
			}
			if !yield(name, d) {
				return
			}
		}
	}
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
