package fence

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

const (
	runbook    = "docs/runbook.md"
	runbookURL = "https://github.com/criproxy/criproxy/blob/main/" + runbook + "#"
)

// A sign is what shows trouble: an alert, a finding of doctor, or a line of the log at warning or above.
type sign struct {
	kind  string // "alert", "doctor" or "log"
	text  string // with … for what only the running program knows
	entry string // the anchor that the sign itself names; empty if it names none
	place string // where it is made
}

// is reports whether a row of the runbook stands for the sign. In the row, … stands for any text.
func (s sign) is(kind, row string) bool {
	parts := strings.Split(row, "…")
	for i := range parts {
		parts[i] = regexp.QuoteMeta(parts[i])
	}
	return s.kind == kind && regexp.MustCompile("^"+strings.Join(parts, ".*")+"$").MatchString(s.text)
}

// verb matches what fmt.Sprintf replaces.
var verb = regexp.MustCompile(`%(\[\d+\])?[-+# 0]*[\d.]*[a-zA-Z]`)

// textOf returns the text of an expression, as far as the source has it.
func textOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if s, err := strconv.Unquote(e.Value); err == nil {
			return s
		}
	case *ast.BinaryExpr:
		return strings.ReplaceAll(textOf(e.X)+textOf(e.Y), "……", "…")
	case *ast.CallExpr:
		if named(e, "Sprintf") {
			return verb.ReplaceAllString(textOf(e.Args[0]), "…")
		}
	}
	return "…"
}

// named reports whether a call is one of a function or method with one of the names.
func named(call *ast.CallExpr, names ...string) bool {
	selector, ok := call.Fun.(*ast.SelectorExpr)
	return ok && slices.Contains(names, selector.Sel.Name)
}

// signs returns what the program can say of trouble.
func signs(t *testing.T) []sign {
	t.Helper()
	var all []sign
	for _, name := range []string{"alerts.yaml", "fleet-rules.yaml"} {
		var alerts struct {
			Groups []struct {
				Rules []struct {
					Alert       string
					Annotations map[string]string
				}
			}
		}
		data, err := os.ReadFile(filepath.Join(root, "packaging/monitoring", name))
		require.NoError(t, err)
		require.NoError(t, yaml.Unmarshal(data, &alerts))
		for _, g := range alerts.Groups {
			for _, r := range g.Rules {
				if r.Alert == "" { // it records
					continue
				}
				entry, ok := strings.CutPrefix(r.Annotations["runbook_url"], runbookURL)
				assert.True(t, ok, "%s: runbook_url does not begin with %s", r.Alert, runbookURL)
				all = append(all, sign{"alert", r.Alert, entry, name})
			}
		}
	}
	eachFile(t, ".go", func(path, text string) {
		if strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "testbed/") || strings.HasPrefix(path, "internal/testing/") {
			return
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, text, parser.SkipObjectResolution)
		require.NoError(t, err)
		examines := path == "internal/command/cli/doctor.go" || strings.HasPrefix(path, "internal/command/doctor/")
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			place := files.Position(call.Pos()).String()
			switch {
			case examines && named(call, "add") && len(call.Args) == 5:
				all = append(all, sign{"doctor", textOf(call.Args[3]), textOf(call.Args[2]), place})
			case path == "internal/config/warnings.go" && named(call, "Sprintf"): // doctor cuts them in two
				text, _, _ := strings.Cut(textOf(call), "; ")
				all = append(all, sign{"doctor", text, "a-setting-has-consequences", place})
			case path == "internal/observe/admin/state.go" && named(call, "Sprintf"): // which status says as well
				all = append(all, sign{"doctor", textOf(call), "a-client-leaves-connections-open", place})
			case logs(call):
				message := call.Args[0]
				if named(call, "ErrorS") {
					message = call.Args[1]
				}
				all = append(all, sign{"log", textOf(message), "", place})
				assert.NotEqual(t, "…", textOf(message), "%s: begin the line with a text that the runbook can name", place)
			}
			return true
		})
	})
	return all
}

// logs reports whether a call logs a line at warning or above.
func logs(call *ast.CallExpr) bool {
	selector, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	pkg, ok := selector.X.(*ast.Ident)
	return ok && pkg.Name == "klog" && regexp.MustCompile("^(Error|Warning|Fatal|Exit)").MatchString(selector.Sel.Name)
}

// An entry of the runbook is a section with rows of signs.
type entry struct {
	anchor, text string
	rows         [][2]string // kind, text
}

// entries returns the entries of the runbook.
func entries(t *testing.T) []entry {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, runbook))
	require.NoError(t, err)
	row := regexp.MustCompile("(?m)^\\| (alert|doctor|log) \\| `(.*)` \\|$")
	var all []entry
	for _, section := range strings.Split(string(data), "\n### ")[1:] {
		title, text, _ := strings.Cut(section, "\n")
		text, _, _ = strings.Cut(text, "\n## ")
		e := entry{anchor: regexp.MustCompile(`[^a-z0-9-]`).ReplaceAllString(strings.ReplaceAll(strings.ToLower(title), " ", "-"), ""), text: text}
		for _, m := range row.FindAllStringSubmatch(text, -1) {
			e.rows = append(e.rows, [2]string{m[1], m[2]})
		}
		all = append(all, e)
	}
	return all
}

// Who meets an alert, a finding of doctor or a line of the log finds it in the runbook, word for word.
func TestRunbookHasEachSignOfTrouble(t *testing.T) {
	all := entries(t)
	for _, s := range signs(t) {
		if s.entry != "" {
			assert.True(t, slices.ContainsFunc(all, func(e entry) bool { return e.anchor == s.entry }), "%s: %s has no entry %q", s.place, runbook, s.entry)
		}
		if s.text == "…" { // a mistake in the configuration can be anything
			continue
		}
		assert.True(t, slices.ContainsFunc(all, func(e entry) bool {
			return (s.entry == "" || s.entry == e.anchor) && slices.ContainsFunc(e.rows, func(r [2]string) bool { return s.is(r[0], r[1]) })
		}), "%s: no row | %s | `%s` | in %s#%s", s.place, s.kind, s.text, runbook, s.entry)
	}
}

// An entry about a line that is gone misleads, and one without advice does not help.
func TestRunbookNamesOnlyWhatExists(t *testing.T) {
	all := signs(t)
	for _, e := range entries(t) {
		assert.NotEmpty(t, e.rows, "%s has no rows", e.anchor)
		for _, r := range e.rows {
			assert.Greater(t, len(strings.ReplaceAll(r[1], "…", "")), 6, "%s: %s fits too much", e.anchor, r[1])
			assert.True(t, slices.ContainsFunc(all, func(s sign) bool { return s.is(r[0], r[1]) && (s.entry == "" || s.entry == e.anchor) }),
				"%s: there is no %s %q that leads here", e.anchor, r[0], r[1])
		}
		for _, part := range []string{"**It means:**", "**Do:**"} {
			assert.Contains(t, e.text, part, e.anchor)
		}
	}
}

// eachFile calls f with each file of the repository whose name has the suffix.
func eachFile(t *testing.T, suffix string, f func(path, text string)) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".")):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, suffix):
			return nil
		}
		text, err := os.ReadFile(path)
		if err == nil {
			f(strings.TrimPrefix(path, root+"/"), string(text))
		}
		return err
	}))
}
