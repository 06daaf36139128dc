// Package fence has only tests. They hold the order of the packages, which docs/architecture.md shows, and check names and
// texts of the whole repository.
package fence

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/testing/bounded"
)

const module = "github.com/criproxy/criproxy/"

// order has all packages of the product, from the bottom up. A package may import those before it, and no other.
var order = []string{
	"internal/base/wire", "internal/base/buffers", "internal/base/suggest", "internal/base/host", "internal/base/recovery",
	"internal/base/strict", "internal/base/dump",
	"codec", "rewrite", "internal/transport", "internal/transport/grpcgo",
	"internal/inventory", "internal/backend", "internal/profile", "internal/config",
	"director", "director/dial", "director/example", "internal/drift",
	"hook/hookapi", "hook/plugin", "hook/plugin/example", "internal/plugins",
	"criadapter",
	"internal/observe/capture", "internal/observe/calls", "internal/cri", "internal/observe/why",
	"internal/observe/admin", "internal/observe/page", "internal/observe/replay", "internal/observe/show", "internal/observe/telemetry",
	"internal/server/limits", "internal/server/listen", "internal/server",
	"internal/fakecri",
	"internal/command/doctor", "internal/command/takeover", "internal/command/cli",
	"docs", "cmd/criproxy",
}

// light are packages that other programs link, and what of this module they may link with them.
var light = map[string][]string{
	"hook/hookapi": {"codec"},
	"hook/plugin":  {"hook/hookapi"},
	"rewrite":      {"internal/base"},
	"codec":        {"internal/base"},
}

// within reports whether a package is one of some, or in a folder of theirs.
func within(pkg string, some []string) bool {
	return slices.ContainsFunc(some, func(one string) bool { return pkg == one || strings.HasPrefix(pkg, one+"/") })
}

// above are the packages that may log, and use gRPC and CRI: they are the program, not the library.
var above = []string{"internal/observe/admin", "internal/observe/show", "internal/observe/telemetry", "internal/observe/why", "internal/cri", "internal/server", "internal/fakecri", "internal/command", "internal/testing", "cmd"}

// reserved are modules that only some packages may import, and the reason.
var reserved = []struct {
	prefix string
	only   []string // packages, and folders of packages
	why    string
}{
	{"k8s.io/klog", above, "libraries are silent, so that a program that embeds them decides what is logged"},
	{"k8s.io/cri-api", append(above, "criadapter"), "the multiplexer knows no CRI: CRI is one profile of it"},
	{"google.golang.org/grpc", append(above, "codec", "internal/base/buffers", "internal/base/recovery", "internal/transport", "internal/backend", "director", "internal/drift", "criadapter", "internal/plugins", "hook", "internal/observe"), "rewrite is pure: bytes in, bytes out"},
	{"github.com/mwitkow/grpc-proxy", []string{"internal/transport/grpcgo"}, "the program forwards streams itself, except on the data path of grpc-go"},
	{"testing", []string{"internal/testing"}, "production code must not link package testing"},
}

// imports returns what each package of this module imports.
func imports(t *testing.T) map[string][]string {
	t.Helper()
	out, err := bounded.Command(t, "go", "list", "-f", "{{.ImportPath}} {{join .Imports \" \"}}", module+"...").Output()
	require.NoError(t, err)
	all := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		all[strings.TrimPrefix(words[0], module)] = words[1:]
	}
	return all
}

func TestImportsGoDown(t *testing.T) {
	for pkg, imported := range imports(t) {
		if within(pkg, []string{"internal/testing"}) {
			continue // it has no code of the product, and the product does not import it
		}
		at := slices.Index(order, pkg)
		assert.GreaterOrEqual(t, at, 0, "%s is not in order", pkg)
		for _, one := range imported {
			if ours, ok := strings.CutPrefix(one, module); ok {
				assert.True(t, slices.Contains(order[:max(at, 0)], ours), "%s imports %s, which is not below it: see order", pkg, ours)
				if few, ok := light[pkg]; ok {
					assert.True(t, within(ours, few), "%s imports %s: see light", pkg, ours)
				}
				continue
			}
			for _, r := range reserved {
				if one == r.prefix || strings.HasPrefix(one, r.prefix+"/") {
					assert.True(t, within(pkg, r.only), "%s imports %s: %s", pkg, one, r.why)
				}
			}
		}
	}
}
