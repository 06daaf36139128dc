// Package fence has only tests. They hold the plan of the house, which docs/architecture.md draws: which wing may import
// which, and which package inside a wing. They also check names and texts of the whole
// repository.
package fence

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const module = "github.com/criproxy/criproxy/"

// wings says which wings and public packages the packages of a wing may import, besides their own wing. A public
// package is a wing of its own. What comes in must stand above.
var wings = map[string][]string{
	"rewrite":           {"internal/base"},
	"codec":             {"internal/base"},
	"internal/base":     {"codec"},
	"internal/memory":   {"internal/base", "codec", "rewrite"},
	"internal/settings": {"internal/base", "codec", "rewrite", "internal/memory"},
	"director":          {"internal/base", "codec", "rewrite", "internal/memory", "internal/settings"},
	"hook":              {"codec"}, // linked into plugins
	"internal/hook":     {"internal/base", "codec", "rewrite"},
	"criadapter":        {"internal/base", "codec", "rewrite", "internal/memory", "internal/settings", "director", "hook", "internal/hook"},
	"internal/observe":  {"internal/base", "codec", "internal/memory", "internal/settings", "director", "internal/hook"},
	"internal/proxy":    {"internal/base", "codec", "internal/memory", "internal/settings", "director", "internal/hook", "criadapter", "internal/observe"},
	"internal/command":  {"internal/base", "codec", "internal/memory", "internal/settings", "director", "criadapter", "internal/observe", "internal/proxy"},
	"cmd":               {"internal/base", "internal/proxy", "internal/command", "docs"},
	"internal/testing":  {"internal/base", "codec", "rewrite", "director", "internal/command"},
}

// inside says which packages of its own wing a package may import. A package that is not here may import none of them.
var inside = map[string][]string{
	"internal/base/dump":         {"internal/base/wire"},
	"internal/base/strict":       {"internal/base/suggest"},
	"internal/base/transport":    {"internal/base/buffers", "internal/base/recovery"},
	"internal/base/grpcgo":       {"internal/base/recovery", "internal/base/transport"},
	"internal/settings/config":   {"internal/settings/profile"},
	"internal/settings/drift":    {"internal/settings/profile"},
	"internal/observe/calls":     {"internal/observe/capture"},
	"internal/observe/replay":    {"internal/observe/capture"},
	"internal/observe/page":      {"internal/observe/admin", "internal/observe/calls", "internal/observe/capture"},
	"internal/observe/show":      {"internal/observe/admin", "internal/observe/calls", "internal/observe/capture"},
	"internal/observe/telemetry": {"internal/observe/admin", "internal/observe/calls", "internal/observe/capture"},
	"internal/proxy/listen":      {"internal/proxy/limits"},
	"internal/proxy/daemon":      {"internal/proxy/cri", "internal/proxy/limits", "internal/proxy/listen"},
	"internal/command/cli":       {"internal/command/fakecri", "internal/command/node"},
	"internal/testing/mounttest": {"internal/testing/untested"},
	"internal/testing/testkit":   {"internal/testing/mounttest", "internal/testing/untested"},
	"director/dial":              {"director"},
	"director/example":           {"director", "director/dial"}, // a program that embeds it
	"hook/plugin":                {"hook/hookapi"},
	"hook/plugin/example":        {"hook/plugin"},
}

// leaves are the packages that both codec and the packages above codec in wing base may import.
var leaves = []string{"internal/base/buffers", "internal/base/host", "internal/base/recovery", "internal/base/suggest", "internal/base/wire", "internal/base/dump", "internal/base/strict"}

// wingOf returns the wing of a package.
func wingOf(pkg string) string {
	if rest, ok := strings.CutPrefix(pkg, "internal/"); ok {
		wing, _, _ := strings.Cut(rest, "/")
		return "internal/" + wing
	}
	wing, _, _ := strings.Cut(pkg, "/")
	return wing
}

// mayImport reports whether a package may import another one of this module.
func mayImport(pkg, imported string) bool {
	from, to := wingOf(pkg), wingOf(imported)
	switch {
	case from == to:
		return slices.Contains(inside[pkg], imported)
	case pkg == "rewrite" || pkg == "codec":
		return slices.Contains(leaves, imported)
	case from == "internal/base" && slices.Contains(leaves, pkg):
		return false
	}
	return slices.Contains(wings[from], to)
}

// above are the wings whose packages may log, and use gRPC and CRI: they are the command, not the library.
var above = []string{"internal/observe/admin", "internal/observe/show", "internal/observe/telemetry", "internal/proxy", "internal/command", "internal/testing", "cmd"}

// reserved are modules that only some packages may import, and the reason.
var reserved = []struct {
	prefix string
	only   []string // packages, and wings
	why    string
}{
	{"k8s.io/klog", above, "libraries are silent, so that a program that embeds them decides what is logged"},
	{"k8s.io/cri-api", append(above, "criadapter"), "the multiplexer knows no CRI: CRI is one profile of it"},
	{"google.golang.org/grpc", append(above, "codec", "internal/base/buffers", "internal/base/transport", "internal/base/grpcgo", "internal/base/recovery", "internal/memory", "director", "internal/settings/drift", "criadapter", "internal/hook", "hook", "internal/observe"), "rewrite is pure: bytes in, bytes out"},
	{"github.com/mwitkow/grpc-proxy", []string{"internal/base/grpcgo"}, "the program forwards streams itself, except on the data path of grpc-go"},
	{"testing", []string{"internal/testing"}, "production code must not link package testing"},
}

// imports returns what each package of this module imports.
func imports(t *testing.T) map[string][]string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.ImportPath}} {{join .Imports \" \"}}", module+"...").Output()
	require.NoError(t, err)
	all := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		all[strings.TrimPrefix(words[0], module)] = words[1:]
	}
	return all
}

func TestImportsGoOneWay(t *testing.T) {
	for pkg, imported := range imports(t) {
		for _, one := range imported {
			if ours, ok := strings.CutPrefix(one, module); ok {
				assert.True(t, mayImport(pkg, ours), "%s imports %s, which is not below it: see wings and inside", pkg, ours)
				continue
			}
			for _, r := range reserved {
				if one == r.prefix || strings.HasPrefix(one, r.prefix+"/") {
					assert.True(t, slices.Contains(r.only, pkg) || slices.Contains(r.only, wingOf(pkg)), "%s imports %s: %s", pkg, one, r.why)
				}
			}
		}
	}
}

// A permission that nobody uses hides an arrow that comes back.
func TestEachPermissionToImportIsUsed(t *testing.T) {
	used, usedInside := map[[2]string]bool{}, map[[2]string]bool{}
	for pkg, imported := range imports(t) {
		for _, one := range imported {
			if ours, ok := strings.CutPrefix(one, module); ok {
				used[[2]string{wingOf(pkg), wingOf(ours)}] = true
				usedInside[[2]string{pkg, ours}] = true
			}
		}
	}
	for wing, all := range wings {
		for _, other := range all {
			assert.True(t, used[[2]string{wing, other}], "no package of %s imports one of %s", wing, other)
		}
	}
	for pkg, all := range inside {
		for _, other := range all {
			assert.True(t, usedInside[[2]string{pkg, other}], "%s does not import %s", pkg, other)
		}
	}
}

// Each wing is in the plan, and says in its doc.go what it is.
func TestEachWingIsInThePlan(t *testing.T) {
	entries, err := os.ReadDir(filepath.Join(root, "internal"))
	require.NoError(t, err)
	for _, e := range entries {
		assert.Contains(t, wings, "internal/"+e.Name())
		assert.FileExists(t, filepath.Join(root, "internal", e.Name(), "doc.go"))
	}
}

// codec and the wing base import each other's packages: transport works with frames, and codec with what lies below it.
// All other arrows between wings go one way.
func TestWingsHaveNoLoop(t *testing.T) {
	const underWay, done = 1, 2
	seen := map[string]int{}
	var visit func(wing string)
	visit = func(wing string) {
		switch seen[wing] {
		case underWay:
			assert.Fail(t, "wings lets "+wing+" import itself through others")
			return
		case done:
			return
		}
		seen[wing] = underWay
		for _, below := range wings[wing] {
			if (wing != "codec" && wing != "rewrite") || below != "internal/base" {
				visit(below)
			}
		}
		seen[wing] = done
	}
	for wing := range wings {
		visit(wing)
	}
}
