// Package fence has only tests. They make imports go one way, keep the table of packages in
// docs/architecture.md up to date, and check names and texts of the whole repository.
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

// mayImport says which packages of this module a package may import, lower packages first. A
// package that is not here may import none of them.
var mayImport = map[string][]string{
	"internal/suggest":    {},
	"internal/recovery":   {},
	"internal/strict":     {"internal/suggest"},
	"internal/peercred":   {},
	"rewrite":             {"internal/suggest"},
	"internal/wire":       {},
	"internal/buffers":    {},
	"internal/dump":       {"internal/wire"},
	"codec":               {"internal/wire", "internal/buffers"},
	"internal/lastknown":  {"codec", "rewrite", "internal/recovery"},
	"internal/capture":    {"codec", "internal/buffers", "internal/dump", "internal/wire", "internal/trust"},
	"internal/inspect":    {"codec", "internal/dump", "internal/capture", "internal/lastknown"},
	"internal/report":     {"internal/capture", "internal/dump", "internal/inspect"},
	"internal/replay":     {"codec", "internal/dump", "internal/wire", "internal/capture", "internal/inspect"},
	"internal/address":    {},
	"internal/memories":   {"internal/lastknown"},
	"internal/profile":    {"codec", "internal/dump", "rewrite", "internal/lastknown", "internal/strict", "internal/suggest"},
	"director":            {"codec", "internal/buffers", "internal/dump", "rewrite", "internal/lastknown", "internal/profile", "internal/address", "internal/suggest", "internal/recovery", "internal/transport"},
	"director/example":    {"codec", "director"}, // a program that embeds it
	"internal/drift":      {"codec", "internal/wire", "rewrite", "director", "internal/profile"},
	"criadapter":          {"codec", "internal/wire", "rewrite", "internal/lastknown", "internal/profile", "director", "internal/hook", "hook/hookapi", "internal/recovery"},
	"internal/cri":        {"codec", "internal/wire", "internal/profile", "director", "internal/inspect", "criadapter"},
	"hook/hookapi":        {"codec"},
	"hook/plugin":         {"hook/hookapi"}, // linked into plugins
	"hook/plugin/example": {"hook/plugin"},
	"internal/hook":       {"codec", "internal/dump", "internal/wire", "rewrite", "director", "internal/strict", "internal/suggest", "internal/recovery", "internal/trust", "internal/peercred"},
	"internal/fakecri":    {"codec"},
	"internal/transport":  {"codec", "internal/buffers", "internal/recovery"},
	"internal/muxtest":    {"codec", "internal/dump", "rewrite", "director"}, // for tests only
	"internal/fence":      {},
	"internal/invariant":  {}, // for tests only
	"internal/markdown":   {},
	"internal/untested":   {},                    // for tests only
	"internal/mounttest":  {"internal/untested"}, // for tests only
	"internal/prototest":  {},                    // for tests only
	"internal/doctor":     {"internal/peercred"},
	"internal/mutants":    {"internal/markdown"}, // a command, for make mutants
	"internal/config":     {"codec", "criadapter", "internal/cri", "director", "internal/capture", "internal/lastknown", "internal/strict", "internal/suggest", "internal/address", "internal/profile"},
	"internal/testkit":    {"codec", "internal/fakecri", "internal/mounttest", "internal/untested"},
	"internal/certs":      {"internal/config"},
	"internal/limits":     {"codec", "director", "internal/buffers", "internal/config", "internal/lastknown"},
	"internal/listen":     {"internal/certs", "internal/config", "internal/limits", "internal/recovery", "internal/trust", "internal/peercred"},
	"internal/access":     {"codec", "director", "internal/buffers", "internal/capture", "internal/config", "internal/listen", "internal/cri"},
	"internal/version":    {},
	"internal/state":      {"internal/config", "internal/drift", "internal/hook", "internal/lastknown"},
	"internal/api":        {"codec", "criadapter", "internal/cri", "director", "internal/certs", "internal/config", "internal/recovery"},
	"internal/telemetry":  {"codec", "director", "internal/capture", "internal/config", "internal/drift", "internal/dump", "internal/hook", "internal/inspect", "internal/lastknown", "internal/listen", "internal/recovery", "internal/state", "internal/version"},
	"internal/admin":      {"internal/config", "internal/state", "internal/version"},
	"internal/show":       {"internal/admin", "internal/hook", "internal/inspect", "internal/state"},
	"internal/dashboard":  {},
	"internal/ui":         {"internal/admin", "internal/capture", "internal/dashboard", "internal/inspect", "internal/report", "internal/state"},
	"internal/daemon":     {"codec", "criadapter", "internal/cri", "director", "internal/access", "internal/admin", "internal/api", "internal/certs", "internal/config", "internal/drift", "internal/hook", "internal/lastknown", "internal/limits", "internal/listen", "internal/memories", "internal/recovery", "internal/state", "internal/telemetry", "internal/transport", "internal/trust", "internal/version"},
	"internal/demo":       {"internal/config", "internal/daemon", "internal/fakecri", "internal/lastknown"},
	"internal/takeover":   {"internal/config", "internal/peercred"},
	"internal/tuning":     {},
	"internal/stderr":     {},
	"internal/cli":        {"codec", "criadapter", "internal/cri", "director", "internal/admin", "internal/api", "internal/capture", "internal/config", "internal/daemon", "internal/demo", "internal/doctor", "internal/dump", "internal/inspect", "internal/lastknown", "internal/listen", "internal/recovery", "internal/replay", "internal/report", "internal/show", "internal/state", "internal/stderr", "internal/suggest", "internal/takeover", "internal/telemetry", "internal/trust", "internal/tuning", "internal/ui", "internal/version", "internal/profile"},
	"cmd/criproxy":        {"internal/cli", "internal/daemon", "internal/stderr", "internal/suggest"},
}

// rooms are the packages that only the command uses: they may log, and use gRPC and CRI.
var rooms = []string{"cmd/criproxy", "internal/access", "internal/admin", "internal/api", "internal/certs", "internal/cli", "internal/daemon", "internal/demo", "internal/limits", "internal/listen", "internal/memories", "internal/show", "internal/state", "internal/stderr", "internal/telemetry", "internal/testkit"}

// reserved are modules that only some packages may import, and the reason.
var reserved = []struct {
	prefix string
	only   []string
	why    string
}{
	{"k8s.io/klog", rooms, "libraries are silent, so that a program that embeds them decides what is logged"},
	{"k8s.io/cri-api", append(rooms, "criadapter", "internal/fakecri"), "the multiplexer knows no CRI: CRI is one profile of it"},
	{"google.golang.org/grpc", append(rooms, "codec", "internal/buffers", "internal/transport", "internal/lastknown", "internal/address", "director", "director/example", "internal/drift", "criadapter", "internal/hook", "hook/plugin", "internal/capture", "internal/inspect", "internal/replay", "internal/recovery", "internal/fakecri", "internal/muxtest", "internal/testkit"), "rewrite is pure: bytes in, bytes out"},
	{"github.com/mwitkow/grpc-proxy", nil, "the program forwards streams itself; only tests compare it with grpc-proxy"},
	{"testing", []string{"internal/muxtest", "internal/testkit", "internal/mounttest", "internal/prototest", "internal/untested", "internal/fence"}, "production code must not link package testing"},
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
