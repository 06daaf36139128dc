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
	"internal/base/host":         {},
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
	"internal/base/transport":    {},
	"internal/proxy/daemon":      {"internal/memory"},
	"internal/settings/profile":           {"codec", "internal/base/dump", "rewrite", "internal/memory", "internal/base/strict", "internal/base/suggest"},
	"director":                   {"codec", "internal/base/buffers", "internal/base/dump", "rewrite", "internal/memory", "internal/settings/profile", "internal/base/transport", "internal/base/suggest", "internal/base/recovery", "internal/base/transport"},
	"director/example":           {"codec", "director"}, // a program that embeds it
	"internal/settings/drift":     {"codec", "internal/base/wire", "rewrite", "director", "internal/settings/profile"},
	"criadapter":                 {"codec", "internal/base/wire", "rewrite", "internal/memory", "internal/settings/profile", "director", "internal/hook", "hook/hookapi", "internal/base/recovery"},
	"internal/proxy/cri":         {"codec", "internal/base/wire", "internal/settings/profile", "director", "internal/observe/calls", "criadapter"},
	"hook/hookapi":               {"codec"},
	"hook/plugin":                {"hook/hookapi"}, // linked into plugins
	"hook/plugin/example":        {"hook/plugin"},
	"internal/hook":              {"codec", "internal/base/dump", "internal/base/wire", "rewrite", "director", "internal/base/strict", "internal/base/suggest", "internal/base/recovery", "internal/base/host", "internal/base/host"},
	"internal/command/fakecri":   {"codec"},
	"internal/base/transport":    {"codec", "internal/base/buffers", "internal/base/recovery"},
	"internal/testing/muxtest":   {"codec", "internal/base/dump", "rewrite", "director"}, // for tests only
	"internal/testing/fence":     {},
	"internal/testing/invariant": {}, // for tests only
	"internal/testing/markdown":  {},
	"internal/testing/untested":  {},                            // for tests only
	"internal/testing/mounttest": {"internal/testing/untested"}, // for tests only
	"internal/testing/prototest": {},                            // for tests only
	"internal/command/node":      {"internal/base/host"},
	"internal/testing/mutants":   {"internal/testing/markdown"}, // a command, for make mutants
	"internal/settings/config":      {"codec", "criadapter", "internal/proxy/cri", "director", "internal/observe/capture", "internal/memory", "internal/base/strict", "internal/base/suggest", "internal/base/transport", "internal/settings/profile"},
	"internal/testing/testkit":   {"codec", "internal/command/fakecri", "internal/testing/mounttest", "internal/testing/untested"},
	"internal/proxy/listen":      {"internal/settings/config"},
	"internal/proxy/limits":      {"codec", "director", "internal/base/buffers", "internal/settings/config", "internal/memory"},
	"internal/proxy/listen":      {"internal/proxy/listen", "internal/settings/config", "internal/proxy/limits", "internal/base/recovery", "internal/base/host", "internal/base/host"},
	"internal/proxy/daemon":      {"codec", "director", "internal/base/buffers", "internal/observe/capture", "internal/settings/config", "internal/proxy/listen", "internal/proxy/cri"},
	"internal/settings/config":      {},
	"internal/observe/admin":     {"internal/settings/config", "internal/settings/drift", "internal/hook", "internal/memory"},
	"internal/proxy/daemon":      {"codec", "criadapter", "internal/proxy/cri", "director", "internal/proxy/listen", "internal/settings/config", "internal/base/recovery"},
	"internal/observe/telemetry": {"codec", "director", "internal/observe/capture", "internal/settings/config", "internal/settings/drift", "internal/base/dump", "internal/hook", "internal/observe/calls", "internal/memory", "internal/proxy/listen", "internal/base/recovery", "internal/observe/admin", "internal/settings/config"},
	"internal/observe/admin":     {"internal/settings/config", "internal/observe/admin", "internal/settings/config"},
	"internal/observe/show":      {"internal/observe/admin", "internal/hook", "internal/observe/calls", "internal/observe/admin"},
	"internal/observe/page":      {},
	"internal/observe/page":      {"internal/observe/admin", "internal/observe/capture", "internal/observe/page", "internal/observe/calls", "internal/observe/page", "internal/observe/admin"},
	"internal/proxy/daemon":      {"codec", "criadapter", "internal/proxy/cri", "director", "internal/proxy/daemon", "internal/observe/admin", "internal/proxy/daemon", "internal/proxy/listen", "internal/settings/config", "internal/settings/drift", "internal/hook", "internal/memory", "internal/proxy/limits", "internal/proxy/listen", "internal/proxy/daemon", "internal/base/recovery", "internal/observe/admin", "internal/observe/telemetry", "internal/base/transport", "internal/base/host", "internal/settings/config"},
	"internal/command/cli":       {"internal/settings/config", "internal/proxy/daemon", "internal/command/fakecri", "internal/memory"},
	"internal/command/node":      {"internal/settings/config", "internal/base/host"},
	"internal/command/cli":       {},
	"internal/command/cli":       {},
	"internal/command/cli":       {"codec", "criadapter", "internal/proxy/cri", "director", "internal/observe/admin", "internal/proxy/daemon", "internal/observe/capture", "internal/settings/config", "internal/proxy/daemon", "internal/command/cli", "internal/command/node", "internal/base/dump", "internal/observe/calls", "internal/memory", "internal/proxy/listen", "internal/base/recovery", "internal/observe/replay", "internal/observe/page", "internal/observe/show", "internal/observe/admin", "internal/command/cli", "internal/base/suggest", "internal/command/node", "internal/observe/telemetry", "internal/base/host", "internal/command/cli", "internal/observe/page", "internal/settings/config", "internal/settings/profile"},
	"cmd/criproxy":               {"internal/command/cli", "internal/proxy/daemon", "internal/command/cli", "internal/base/suggest"},
}

// rooms are the packages that only the command uses: they may log, and use gRPC and CRI.
var rooms = []string{"cmd/criproxy", "internal/proxy/daemon", "internal/observe/admin", "internal/proxy/daemon", "internal/proxy/listen", "internal/command/cli", "internal/proxy/daemon", "internal/command/cli", "internal/proxy/limits", "internal/proxy/listen", "internal/proxy/daemon", "internal/observe/show", "internal/observe/admin", "internal/command/cli", "internal/observe/telemetry", "internal/testing/testkit"}

// reserved are modules that only some packages may import, and the reason.
var reserved = []struct {
	prefix string
	only   []string
	why    string
}{
	{"k8s.io/klog", rooms, "libraries are silent, so that a program that embeds them decides what is logged"},
	{"k8s.io/cri-api", append(rooms, "criadapter", "internal/command/fakecri"), "the multiplexer knows no CRI: CRI is one profile of it"},
	{"google.golang.org/grpc", append(rooms, "codec", "internal/base/buffers", "internal/base/transport", "internal/memory", "internal/base/transport", "director", "director/example", "internal/settings/drift", "criadapter", "internal/hook", "hook/plugin", "internal/observe/capture", "internal/observe/calls", "internal/observe/replay", "internal/base/recovery", "internal/command/fakecri", "internal/testing/muxtest", "internal/testing/testkit"), "rewrite is pure: bytes in, bytes out"},
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
