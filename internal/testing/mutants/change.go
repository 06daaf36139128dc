package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A change is an operator, the words that say where in the function it applies, and the code that it puts there.
type change struct {
	operator string
	words    []string
	code     string
}

func parse(operation string) (c change, err error) {
	operator, rest, _ := strings.Cut(operation, " ")
	words, code, hasCode := strings.Cut(rest, ": ")
	c = change{operator, strings.Fields(words), code}
	wantsCode := false
	switch operator {
	case "drop", "never", "always":
	case "before", "after", "inside", "swap":
		wantsCode = true
	case "return":
		return change{operator, nil, rest}, nil
	default:
		return c, fmt.Errorf("unknown operator %q", operator)
	}
	if hasCode != wantsCode || len(c.words) == 0 {
		return c, fmt.Errorf("%q does not have the form of its operator", operation)
	}
	return c, nil
}

// apply returns the file with the mutant's function, and its changed content; root is the root of the repository.
func (m mutant) apply(root string) (file string, changed []byte, err error) {
	paths, err := filepath.Glob(filepath.Join(root, m.folder, "*.go"))
	if err != nil {
		return "", nil, err
	}
	short := " " + m.function[strings.LastIndex(m.function, ".")+1:] + "("
	for _, path := range paths {
		source, err := os.ReadFile(path)
		if err != nil {
			return "", nil, err
		}
		if strings.HasSuffix(path, "_test.go") || !bytes.Contains(source, []byte(short)) {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), path, source, parser.SkipObjectResolution)
		if err != nil {
			return "", nil, err
		}
		if f := find(parsed, m.function); f != nil {
			from, to, code, err := m.change.edit(f, source)
			if err != nil {
				return "", nil, fmt.Errorf("%s: %s.%s %w; see internal/testing/mutants/mutants.txt", m.name, m.folder, m.function, err)
			}
			return path, slices.Concat(source[:from-1], []byte(code), source[to-1:]), nil
		}
	}
	return "", nil, fmt.Errorf("%s: %s has no function %s; see internal/testing/mutants/mutants.txt", m.name, m.folder, m.function)
}

// find returns the function of a file, or the method Type.name, or nil.
func find(file *ast.File, name string) *ast.FuncDecl {
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		full := f.Name.Name
		if f.Recv != nil {
			full = strings.TrimLeft(types.ExprString(f.Recv.List[0].Type), "*") + "." + full
		}
		if full == name {
			return f
		}
	}
	return nil
}

// edit returns the code that goes in place of the source from from to to. The source is the first of its token.FileSet:
// positions are offsets from 1 on. What code is taken away stays where it is never run, so that all that it uses is used.
func (c change) edit(f *ast.FuncDecl, source []byte) (from, to token.Pos, code string, err error) {
	if c.operator == "return" {
		at := f.Body.Lbrace + 1
		return at, at, " return " + c.code + "; ", nil
	}
	statements, conditions, branches := partsOf(f.Body)
	parts, what := statements, "statements"
	switch c.operator {
	case "never", "always":
		parts, what = conditions, "conditions"
	case "inside":
		parts, what = branches, "branches"
	case "swap":
		parts, what = append(statements, conditions...), "statements or conditions"
	}
	parts = innermost(parts, c.words)
	if c.operator == "swap" && len(c.words) == 1 {
		parts = []part{{says: f.Body}}
	}
	if len(parts) != 1 {
		return 0, 0, "", fmt.Errorf("has %d %s with %s, want 1", len(parts), what, strings.Join(c.words, " and "))
	}
	p := parts[0]
	from, to = p.says.Pos(), p.says.End()
	old := string(source[from-1 : to-1])
	switch c.operator {
	case "drop":
		return from, to, "if false { " + old + " }", nil
	case "never":
		return from, to, "((" + old + ") && false)", nil
	case "always":
		return from, to, "((" + old + ") || true)", nil
	case "before":
		return from, from, c.code + "; ", nil
	case "after":
		return to, to, "; " + c.code, nil
	case "inside":
		return p.body, p.body, " " + c.code + "; ", nil
	}
	n := 0
	ast.Inspect(p.says, func(node ast.Node) bool {
		if !is(node, c.words[0]) {
			return true
		}
		n++
		from, to = node.Pos(), node.End()
		if b, ok := node.(*ast.BinaryExpr); ok {
			from, to = b.OpPos, b.OpPos+token.Pos(len(c.words[0]))
			return true
		}
		return false
	})
	if n != 1 {
		return 0, 0, "", fmt.Errorf("has %s %d times where it has %s, want once", c.words[0], n, strings.Join(c.words, " and "))
	}
	return from, to, c.code, nil
}

// A part is a piece of a function that a change can apply to.
type part struct {
	says ast.Node  // what words are looked for in
	body token.Pos // of a branch: where its statements begin
}

// partsOf returns the simple statements of a function, its conditions, with the operands of && and ||, and its
// branches: what follows an if or a case.
func partsOf(body *ast.BlockStmt) (statements, conditions, branches []part) {
	condition := func(all ...ast.Expr) {
		for _, e := range all {
			if b, ok := e.(*ast.BinaryExpr); e != nil && (!ok || b.Op != token.LAND && b.Op != token.LOR) { // otherwise Inspect comes to it
				conditions = append(conditions, part{says: e})
			}
		}
	}
	block := func(all []ast.Stmt) {
		for _, s := range all {
			switch s.(type) {
			case *ast.ExprStmt, *ast.AssignStmt, *ast.IncDecStmt, *ast.DeclStmt, *ast.DeferStmt, *ast.GoStmt, *ast.ReturnStmt, *ast.SendStmt:
				statements = append(statements, part{says: s})
			}
		}
	}
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BlockStmt:
			block(n.List)
		case *ast.IfStmt:
			condition(n.Cond)
			branches = append(branches, part{says: n.Cond, body: n.Body.Lbrace + 1})
		case *ast.ForStmt:
			condition(n.Cond)
		case *ast.SwitchStmt:
			for _, s := range n.Body.List {
				if c := s.(*ast.CaseClause); n.Tag == nil {
					condition(c.List...)
				}
			}
		case *ast.CaseClause:
			block(n.Body)
		case *ast.CommClause:
			block(n.Body)
			if n.Comm != nil {
				branches = append(branches, part{says: n.Comm, body: n.Colon + 1})
			}
		case *ast.BinaryExpr:
			if n.Op == token.LAND || n.Op == token.LOR {
				conditions = append(conditions, part{says: n})
				condition(n.X, n.Y)
			}
		}
		return true
	})
	return statements, conditions, branches
}

// innermost returns the parts that have all words, without those that contain another.
func innermost(parts []part, words []string) []part {
	parts = slices.DeleteFunc(parts, func(p part) bool {
		return slices.ContainsFunc(words, func(word string) bool {
			has := false
			ast.Inspect(p.says, func(n ast.Node) bool { has = has || is(n, word); return !has })
			return !has
		})
	})
	return slices.DeleteFunc(slices.Clone(parts), func(p part) bool {
		return slices.ContainsFunc(parts, func(q part) bool {
			return p.says != q.says && p.says.Pos() <= q.says.Pos() && q.says.End() <= p.says.End()
		})
	})
}

// is reports whether a node is what a word stands for: a name, with what stands before it or without, a literal, a call of
// a function if the word ends with (), an operator, return or defer.
func is(n ast.Node, word string) bool {
	text := ""
	switch n := n.(type) {
	case *ast.Ident, *ast.SelectorExpr, *ast.BasicLit:
		text = types.ExprString(n.(ast.Expr))
	case *ast.CallExpr:
		text = types.ExprString(n.Fun) + "()"
	case *ast.BinaryExpr:
		text = n.Op.String()
	case *ast.ReturnStmt:
		text = "return"
	case *ast.DeferStmt:
		text = "defer"
	}
	return text == word || strings.HasSuffix(text, "."+word)
}
