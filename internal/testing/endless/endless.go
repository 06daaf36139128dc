// Package endless finds in the source of a test what may wait for ever. The context of a test has no deadline, and neither
// has context.Background: what waits for them or for a command needs a bound of its own.
package endless

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"
)

// A Wait is a place of a source that may wait for ever.
type Wait struct {
	Pos      token.Pos
	Function string // where it is; empty for a variable of the package
	Command  bool   // it waits for a command
	Started  bool   // which the function starts, and ends when it has what it wants
	Cure     string
}

// Waits returns what may wait for ever in a file: commands, and what takes a context or goes over HTTP without a deadline.
func Waits(file *ast.File) (all []Wait) {
	for _, d := range file.Decls {
		function := ""
		if f, ok := d.(*ast.FuncDecl); ok {
			function = f.Name.Name
		}
		s := scopeOf(d)
		ast.Inspect(d, func(n ast.Node) bool {
			if w := s.wait(n); w.Cure != "" {
				w.Pos, w.Function = n.Pos(), function
				all = append(all, w)
			}
			return true
		})
	}
	return all
}

// A scope is what a function does with its variables.
type scope struct {
	assigned map[ast.Expr]string // expression → its variable
	started  map[string]bool     // variable → its Start is called
	endless  map[string]bool     // variable → it is a context without a deadline, and never another one
}

func scopeOf(function ast.Node) scope {
	s := scope{map[ast.Expr]string{}, map[string]bool{}, map[string]bool{}}
	ast.Inspect(function, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if called, ok := n.Fun.(*ast.SelectorExpr); ok && called.Sel.Name == "Start" {
				s.started[types.ExprString(called.X)] = true
			}
		case *ast.AssignStmt:
			for i, right := range n.Rhs {
				name := types.ExprString(n.Lhs[i])
				s.assigned[right] = name
				earlier, known := s.endless[name]
				s.endless[name] = s.forever(right) && (earlier || !known)
			}
		}
		return true
	})
	return s
}

// forever reports whether an expression is a context without a deadline: a test's, context.Background, what is made of
// these without one, or a variable that has never another value.
func (s scope) forever(e ast.Expr) bool {
	if name, ok := e.(*ast.Ident); ok {
		return s.endless[name.Name]
	}
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return false
	}
	switch called := types.ExprString(call.Fun); {
	case called == "bounded.Context":
		return false
	case called == "context.Background", called == "context.TODO", strings.HasSuffix(called, ".Context"):
		return true
	case called == "context.WithCancel", called == "context.WithValue", called == "context.WithoutCancel", strings.HasPrefix(called, "metadata."):
		return len(call.Args) > 0 && s.forever(call.Args[0])
	}
	return false
}

// streams are methods that wait as long as their context.
var streams = []string{
	"StreamWithContext", "GetContainerEvents", "StreamPodSandboxes", "StreamContainers", "StreamContainerStats", "StreamPodSandboxStats",
	"StreamPodSandboxMetrics", "StreamImages", "WaitSubscribers",
}

// wait describes a node of the source that may wait for ever. Its Cure is empty if the node cannot.
func (s scope) wait(n ast.Node) Wait {
	switch n := n.(type) {
	case *ast.CallExpr:
		called := types.ExprString(n.Fun)
		switch {
		case called == "exec.Command", called == "exec.CommandContext" && s.forever(n.Args[0]):
			return Wait{Command: true, Started: s.started[s.assigned[n]], Cure: "use bounded.Command, or host.Command in the testbed"}
		case strings.HasPrefix(called, "interop.Do"), slices.Contains(streams, called[strings.LastIndexByte(called, '.')+1:]):
			if len(n.Args) > 0 && s.forever(n.Args[0]) {
				return Wait{Cure: "give it bounded.Context, or host.Bounded in the testbed"}
			}
		}
	case *ast.SelectorExpr:
		if slices.Contains([]string{"http.Get", "http.Head", "http.Post", "http.PostForm", "http.DefaultClient"}, types.ExprString(n)) {
			return Wait{Cure: "use an http.Client with a Timeout"}
		}
	case *ast.CompositeLit:
		bounded := slices.ContainsFunc(n.Elts, func(e ast.Expr) bool {
			pair, ok := e.(*ast.KeyValueExpr)
			return ok && types.ExprString(pair.Key) == "Timeout"
		})
		if n.Type != nil && types.ExprString(n.Type) == "http.Client" && !bounded {
			return Wait{Cure: "give it a Timeout"}
		}
	}
	return Wait{}
}
