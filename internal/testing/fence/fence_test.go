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
	"internal/base/suggest":      {},
	"internal/base/recovery":     {},
	"internal/base/strict":       {"internal/base/suggest"},
	"internal/peercred":          {},
	"rewrite":                    {"internal/base/suggest"},
	"internal/base/wire":         {},
	"internal/base/buffers":      {},
	"internal/base/dump":         {"internal/base/wire"},
	"codec":                      {"internal/base/wire", "internal/base/buffers"},
	"internal/memory":            {"codec", "rewrite", "internal/base/recovery"},
	"internal/observe/capture":   {"codec", "internal/base/buffers", "internal/base/dump", "internal/base/wire", "internal/base/host"},
	"internal/observe/calls":     {"codec", "internal/base/dump", "internal/observe/capture", "internal/memory"},
	"internal/observe/page":      {"internal/observe/capture", "internal/base/dump", "internal/observe/calls"},
	"internal/observe/replay":    {"codec", "internal/base/dump", "internal/base/wire", "internal/observe/capture", "internal/observe/calls"},
	"internal/base/address":      {},
	"internal/memories":          {"internal/memory"},
	"internal/profile":           {"codec", "internal/base/dump", "rewrite", "internal/memory", "internal/base/strict", "internal/base/suggest"},
	"director":                   {"codec", "internal/base/buffers", "internal/base/dump", "rewrite", "internal/memory", "internal/profile", "internal/base/address", "internal/base/suggest", "internal/base/recovery", "internal/base/transport"},
	"director/example":           {"codec", "director"}, // a program that embeds it
	"internal/profile/drift":     {"codec", "internal/base/wire", "rewrite", "director", "internal/profile"},
	"criadapter":                 {"codec", "internal/base/wire", "rewrite", "internal/memory", "internal/profile", "director", "internal/hook", "hook/hookapi", "internal/base/recovery"},
	"internal/proxy/cri":         {"codec", "internal/base/wire", "internal/profile", "director", "internal/observe/calls", "criadapter"},
	"hook/hookapi":               {"codec"},
	"hook/plugin":                {"hook/hookapi"}, // linked into plugins
	"hook/plugin/example":        {"hook/plugin"},
	"internal/hook":              {"codec", "internal/base/dump", "internal/base/wire", "rewrite", "director", "internal/base/strict", "internal/base/suggest", "internal/base/recovery", "internal/base/host", "internal/peercred"},
	"internal/command/fakecri":   {"codec"},
	"internal/base/transport":    {"codec", "internal/base/buffers", "internal/base/recovery"},
	"internal/testing/muxtest":   {"codec", "internal/base/dump", "rewrite", "director"}, // for tests only
	"internal/testing/fence":     {},
	"internal/testing/invariant": {}, // for tests only
	"internal/testing/markdown":  {},
	"internal/testing/untested":  {},                            // for tests only
	"internal/testing/mounttest": {"internal/testing/untested"}, // for tests only
	"internal/testing/prototest": {},                            // for tests only
	"internal/command/node":      {"internal/peercred"},
	"internal/testing/mutants":   {"internal/testing/markdown"}, // a command, for make mutants
	"internal/proxy/config":      {"codec", "criadapter", "internal/proxy/cri", "director", "internal/observe/capture", "internal/memory", "internal/base/strict", "internal/base/suggest", "internal/base/address", "internal/profile"},
	"internal/testing/testkit":   {"codec", "internal/command/fakecri", "internal/testing/mounttest", "internal/testing/untested"},
	"internal/certs":             {"internal/proxy/config"},
	"internal/proxy/limits":      {"codec", "director", "internal/base/buffers", "internal/proxy/config", "internal/memory"},
	"internal/proxy/listen":      {"internal/certs", "internal/proxy/config", "internal/proxy/limits", "internal/base/recovery", "internal/base/host", "internal/peercred"},
	"internal/proxy/access":      {"codec", "director", "internal/base/buffers", "internal/observe/capture", "internal/proxy/config", "internal/proxy/listen", "internal/proxy/cri"},
	"internal/version":           {},
	"internal/state":             {"internal/proxy/config", "internal/profile/drift", "internal/hook", "internal/memory"},
	"internal/proxy/api":         {"codec", "criadapter", "internal/proxy/cri", "director", "internal/certs", "internal/proxy/config", "internal/base/recovery"},
	"internal/observe/telemetry": {"codec", "director", "internal/observe/capture", "internal/proxy/config", "internal/profile/drift", "internal/base/dump", "internal/hook", "internal/observe/calls", "internal/memory", "internal/proxy/listen", "internal/base/recovery", "internal/state", "internal/version"},
	"internal/observe/admin":     {"internal/proxy/config", "internal/state", "internal/version"},
	"internal/observe/show":      {"internal/observe/admin", "internal/hook", "internal/observe/calls", "internal/state"},
	"internal/dashboard":         {},
	"internal/ui":                {"internal/observe/admin", "internal/observe/capture", "internal/dashboard", "internal/observe/calls", "internal/observe/page", "internal/state"},
	"internal/proxy/daemon":      {"codec", "criadapter", "internal/proxy/cri", "director", "internal/proxy/access", "internal/observe/admin", "internal/proxy/api", "internal/certs", "internal/proxy/config", "internal/profile/drift", "internal/hook", "internal/memory", "internal/proxy/limits", "internal/proxy/listen", "internal/memories", "internal/base/recovery", "internal/state", "internal/observe/telemetry", "internal/base/transport", "internal/base/host", "internal/version"},
	"internal/command/demo":      {"internal/proxy/config", "internal/proxy/daemon", "internal/command/fakecri", "internal/memory"},
	"internal/takeover":          {"internal/proxy/config", "internal/peercred"},
	"internal/tuning":            {},
	"internal/stderr":            {},
	"internal/command/cli":       {"codec", "criadapter", "internal/proxy/cri", "director", "internal/observe/admin", "internal/proxy/api", "internal/observe/capture", "internal/proxy/config", "internal/proxy/daemon", "internal/command/demo", "internal/command/node", "internal/base/dump", "internal/observe/calls", "internal/memory", "internal/proxy/listen", "internal/base/recovery", "internal/observe/replay", "internal/observe/page", "internal/observe/show", "internal/state", "internal/stderr", "internal/base/suggest", "internal/takeover", "internal/observe/telemetry", "internal/base/host", "internal/tuning", "internal/ui", "internal/version", "internal/profile"},
	"cmd/criproxy":               {"internal/command/cli", "internal/proxy/daemon", "internal/stderr", "internal/base/suggest"},
}

// rooms are the packages that only the command uses: they may log, and use gRPC and CRI.
var rooms = []string{"cmd/criproxy", "internal/proxy/access", "internal/observe/admin", "internal/proxy/api", "internal/certs", "internal/command/cli", "internal/proxy/daemon", "internal/command/demo", "internal/proxy/limits", "internal/proxy/listen", "internal/memories", "internal/observe/show", "internal/state", "internal/stderr", "internal/observe/telemetry", "internal/testing/testkit"}

// reserved are modules that only some packages may import, and the reason.
var reserved = []struct {
	prefix string
	only   []string
	why    string
}{
	{"k8s.io/klog", rooms, "libraries are silent, so that a program that embeds them decides what is logged"},
	{"k8s.io/cri-api", append(rooms, "criadapter", "internal/command/fakecri"), "the multiplexer knows no CRI: CRI is one profile of it"},
	{"google.golang.org/grpc", append(rooms, "codec", "internal/base/buffers", "internal/base/transport", "internal/memory", "internal/base/address", "director", "director/example", "internal/profile/drift", "criadapter", "internal/hook", "hook/plugin", "internal/observe/capture", "internal/observe/calls", "internal/observe/replay", "internal/base/recovery", "internal/command/fakecri", "internal/testing/muxtest", "internal/testing/testkit"), "rewrite is pure: bytes in, bytes out"},
	{"github.com/mwitkow/grpc-proxy", nil, "the program forwards streams itself; only tests compare it with grpc-proxy"},
	{"testing", []string{"internal/testing/muxtest", "internal/testing/testkit", "internal/testing/mounttest", "internal/testing/prototest", "internal/testing/untested", "internal/testing/fence"}, "production code must not link package testing"},
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
