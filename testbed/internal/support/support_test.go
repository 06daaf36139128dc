package support

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/testing/markdown"
	"github.com/criproxy/criproxy/testbed/build"
)

var update = flag.Bool("update", false, "write what has run on this machine into docs/support.md")

const (
	begin = "<!-- made by make support -->\n"
	end   = "<!-- to here -->\n"
)

// expected are the cells that no test of ours has run on, but in which nothing differs that criproxy sees.
var expected = []string{
	"| any, with `runtime.v1` (1.23 and later) | any that serves `runtime.v1` or `runtime.v1alpha2` | 4.19 and later | v1, v2 | amd64 | expected to work, not tested |",
	"| any, with `runtime.v1alpha2` (1.20 to 1.25) | the same | 4.19 and later | v1 | amd64 | expected to work, not tested; calls by `runtime.v1alpha2` are: integration/TestEveryClientWorksWithUnequalRuntimeVersions |",
	"| any | any | 4.19 and later | v1, v2 | arm64 | expected to work, not tested on such a machine; the unit tests run under emulation (`make arm64`), as do the demo and the packages |",
}

// rows returns the table's rows: a line for each combination, with the tests that have passed on it.
func rows(runs []Run) (all []string) {
	tests := map[string][]string{}
	for _, r := range runs {
		if len(r.Runtimes) == 0 {
			continue // the test says nothing about a runtime's version
		}
		kubelet := r.Kubelet
		if kubelet == "" {
			kubelet = "none: crictl, ctr, or the test itself"
		}
		key := fmt.Sprintf("| %s | %s | %s | %s | %s |", kubelet, strings.Join(r.Runtimes, ", "), r.Kernel, r.CGroup, r.Arch)
		if !slices.Contains(tests[key], r.Test) {
			tests[key] = append(tests[key], r.Test)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(tests)) {
		slices.Sort(tests[key])
		some := tests[key]
		more := ""
		if len(some) > 3 {
			some, more = some[:3], fmt.Sprintf(" and %d more", len(tests[key])-3)
		}
		all = append(all, fmt.Sprintf("%s %s%s |", key, strings.Join(some, ", "), more))
	}
	return append(all, expected...)
}

func TestTheTableNamesTestsThatPassed(t *testing.T) {
	got := rows([]Run{
		{Kubelet: "1.36", Runtimes: []string{"containerd 1.7", "containerd 2.4"}, Kernel: "6.1", CGroup: "v2", Arch: "amd64", Test: "vm/TestB"},
		{Kubelet: "1.36", Runtimes: []string{"containerd 1.7", "containerd 2.4"}, Kernel: "6.1", CGroup: "v2", Arch: "amd64", Test: "vm/TestA"},
		{Runtimes: []string{"CRI-O 1.36"}, Kernel: "6.1", CGroup: "v1", Arch: "amd64", Test: "crio/TestC"},
	})
	assert.Equal(t, append([]string{
		"| 1.36 | containerd 1.7, containerd 2.4 | 6.1 | v2 | amd64 | vm/TestA, vm/TestB |",
		"| none: crictl, ctr, or the test itself | CRI-O 1.36 | 6.1 | v1 | amd64 | crio/TestC |",
	}, expected...), got)
}

// The page has a table, and with -update the one that this machine's runs make.
func TestThePageHasTheTable(t *testing.T) {
	source, err := build.SourceDir()
	require.NoError(t, err)
	page := filepath.Join(source, "../docs/support.md")
	if *update {
		path, err := File()
		require.NoError(t, err)
		f, err := os.Open(path)
		require.NoError(t, err, "no test has run here yet: make integration vm")
		defer f.Close()
		var runs []Run
		for lines := bufio.NewScanner(f); lines.Scan(); {
			var r Run
			require.NoError(t, json.Unmarshal(lines.Bytes(), &r))
			runs = append(runs, r)
		}
		require.NoError(t, markdown.Between(page, begin, end, "| kubelet | runtimes | kernel | cgroup | architecture | shown by |\n|---|---|---|---|---|---|\n"+strings.Join(rows(runs), "\n")+"\n"))
	}
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	_, table, ok := strings.Cut(string(text), begin)
	require.True(t, ok)
	table, _, ok = strings.Cut(table, end)
	require.True(t, ok)
	for _, row := range expected {
		assert.Contains(t, table, row, "make support")
	}
}
