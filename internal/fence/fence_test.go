// Package fence keeps imports going one way, and counts what the house is made of. It has
// tests and nothing else.
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
	"internal/wire":       {},
	"internal/buffers":    {},
	"internal/dump":       {"internal/wire"},
	"codec":               {"internal/wire", "internal/buffers"},
	"internal/lastknown":  {"codec", "rewrite", "internal/recovery"},
	"internal/capture":    {"codec", "internal/buffers", "internal/dump", "internal/wire", "internal/trust"},
	"internal/inspect":    {"codec", "internal/dump", "internal/capture", "internal/lastknown"},
	"internal/replay":     {"codec", "internal/dump", "internal/wire", "internal/capture", "internal/inspect"},
	"internal/address":    {},
	"internal/profile":    {"codec", "internal/dump", "rewrite", "internal/lastknown", "internal/strict", "internal/suggest"},
	"director":            {"codec", "internal/buffers", "internal/dump", "rewrite", "internal/lastknown", "internal/profile", "internal/address", "internal/suggest", "internal/recovery"},
	"director/example":    {"codec", "director"}, // a program that embeds it
	"internal/drift":      {"codec", "internal/wire", "rewrite", "director", "internal/profile"},
	"criadapter":          {"codec", "internal/wire", "rewrite", "internal/lastknown", "internal/profile", "director", "internal/inspect", "internal/hook", "hook/hookapi", "internal/recovery"},
	"hook/hookapi":        {"codec"},
	"hook/plugin":         {"hook/hookapi"}, // what plugins link in
	"hook/plugin/example": {"hook/plugin"},
	"internal/hook":       {"codec", "internal/dump", "internal/wire", "rewrite", "director", "internal/strict", "internal/suggest", "internal/recovery", "internal/trust"},
	"internal/fakecri":    {"codec"},
	"internal/transport":  {"codec", "internal/buffers", "internal/recovery"}, // with the build tag transport
	"internal/muxtest":    {"codec", "internal/dump", "rewrite", "director"},  // for tests only
	"internal/fence":      {},
	"internal/markdown":   {},
	"internal/mounttest":  {}, // for tests only
	"internal/doctor":     {},
	"internal/mutants":    {"internal/markdown"}, // a command, for make mutants
	"cmd/criproxy":        {"internal/doctor", "internal/buffers", "internal/dump", "codec", "internal/lastknown", "director", "internal/drift", "criadapter", "internal/hook", "internal/capture", "internal/inspect", "internal/replay", "internal/fakecri", "internal/strict", "internal/suggest", "internal/recovery", "internal/trust"},
}

// reserved are modules that only some packages may use, and why.
var reserved = []struct {
	prefix string
	only   []string
	why    string
}{
	{"k8s.io/klog", []string{"cmd/criproxy"}, "libraries are silent, so that a program that embeds them decides what is logged"},
	{"k8s.io/cri-api", []string{"criadapter", "internal/fakecri", "cmd/criproxy"}, "the multiplexer knows no CRI: CRI is one profile of it"},
	{"google.golang.org/grpc", []string{"codec", "internal/buffers", "internal/lastknown", "internal/address", "director", "director/example", "internal/drift", "criadapter", "internal/hook", "hook/plugin", "internal/capture", "internal/inspect", "internal/replay", "internal/recovery", "internal/fakecri", "internal/muxtest", "cmd/criproxy"}, "rewrite is pure: bytes in, bytes out"},
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
