// Package fence keeps imports going one way. It has no code, only this test.
package fence

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const module = "github.com/criproxy/criproxy/"

// mayImport is the house from the ground up: package → those of ours that it may
// import. A package that is not here may import nothing of ours.
var mayImport = map[string][]string{
	"internal/suggest":    {},
	"internal/recovery":   {},
	"internal/strict":     {"internal/suggest"},
	"rewrite":             {"internal/suggest"},
	"codec":               {},
	"internal/lastknown":  {"codec", "rewrite", "internal/recovery"},
	"internal/capture":    {"codec", "internal/trust"},
	"internal/inspect":    {"codec", "internal/capture", "internal/lastknown"},
	"internal/replay":     {"codec", "internal/capture", "internal/inspect"},
	"director":            {"codec", "rewrite", "internal/lastknown", "internal/strict", "internal/suggest", "internal/recovery"},
	"director/example":    {"codec", "director"}, // a program that embeds it
	"internal/drift":      {"codec", "rewrite", "director"},
	"criadapter":          {"codec", "rewrite", "internal/lastknown", "director", "internal/inspect", "internal/hook", "hook/hookapi", "internal/recovery"},
	"hook/hookapi":        {"codec"},
	"hook/plugin":         {"hook/hookapi"}, // what plugins link in
	"hook/plugin/example": {"hook/plugin"},
	"internal/hook":       {"codec", "rewrite", "director", "internal/strict", "internal/suggest", "internal/recovery", "internal/trust"},
	"internal/fakecri":    {"codec"},
	"internal/muxtest":    {"codec", "rewrite", "director"}, // for tests only
	"internal/fence":      {},
	"internal/markdown":   {},
	"internal/mounttest":  {}, // for tests only
	"internal/doctor":     {},
	"internal/mutants":    {"internal/markdown"}, // a command, for make mutants
	"internal/config":     {"codec", "criadapter", "director", "internal/capture", "internal/lastknown", "internal/strict", "internal/suggest"},
	"cmd/criproxy":        {"codec", "criadapter", "director", "internal/capture", "internal/config", "internal/doctor", "internal/drift", "internal/fakecri", "internal/hook", "internal/inspect", "internal/lastknown", "internal/recovery", "internal/replay", "internal/suggest", "internal/trust"},
}

// reserved are modules that only some packages may use, and why.
var reserved = []struct {
	prefix string
	only   []string
	why    string
}{
	{"k8s.io/klog", []string{"cmd/criproxy"}, "libraries are silent, so that a program that embeds them decides what is logged"},
	{"k8s.io/cri-api", []string{"criadapter", "internal/fakecri", "cmd/criproxy"}, "the multiplexer knows no CRI: CRI is one profile of it"},
	{"google.golang.org/grpc", []string{"codec", "internal/lastknown", "director", "director/example", "internal/drift", "criadapter", "internal/hook", "hook/plugin", "internal/capture", "internal/inspect", "internal/replay", "internal/recovery", "internal/fakecri", "internal/muxtest", "cmd/criproxy"}, "rewrite is pure: bytes in, bytes out"},
	{"github.com/mwitkow/grpc-proxy", []string{"director"}, "there is one road for streams"},
	{"testing", []string{"internal/muxtest", "internal/mounttest", "internal/fence"}, "what is linked into the binary has no tests in it"},
}

func TestImportsGoOneWay(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.ImportPath}} {{join .Imports \" \"}}", module+"...").Output()
	require.NoError(t, err)
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		pkg := strings.TrimPrefix(words[0], module)
		for _, imported := range words[1:] {
			if ours, ok := strings.CutPrefix(imported, module); ok {
				assert.True(t, slices.Contains(mayImport[pkg], ours), "%s imports %s, which is not below it: see mayImport", pkg, ours)
				continue
			}
			for _, r := range reserved {
				if imported == r.prefix || strings.HasPrefix(imported, r.prefix+"/") {
					assert.True(t, slices.Contains(r.only, pkg), "%s imports %s: %s", pkg, imported, r.why)
				}
			}
		}
	}
}
