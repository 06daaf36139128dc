package show

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// trouble ranks nodes: those that do not answer, those that are not ready, those in trouble, and the others.
func trouble(a Answer[admin.Report]) int {
	switch {
	case a.Value == nil:
		return 0
	case !a.Value.Ready:
		return 1
	case a.Value.Wrong() != "":
		return 2
	}
	return 3
}

// printFleet shows first what differs, then a table, the nodes in trouble first.
func printFleet(out *Screen, all []Answer[admin.Report], now time.Time) {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b Answer[admin.Report]) int {
		return cmp.Or(cmp.Compare(trouble(a), trouble(b)), cmp.Compare(a.Name, b.Name))
	})
	printDifferences(out, all, now)
	var table Table
	row := func(node, backend, state, since, pods, runtime, config, loaded, version string) {
		table.Row("NODE", node, "BACKEND", backend, "STATE", state, "SINCE", since, "PODS", pods, "RUNTIME", runtime, "CONFIG", config, "LOADED", loaded, "CRIPROXY", version)
	}
	for _, a := range all {
		if a.Value == nil {
			row(a.Name, "-", "unknown", "", "", "", "", "", "")
			continue
		}
		now := now.Add(a.Off) // of that node's clock
		for _, b := range a.Value.Backends {
			row(a.Name, b.Name, b.State, ago(now, b.Since), count(b.Pods), OrDash(b.Runtime), OrDash(a.Value.Config.ID), since(now, a.Value.Config.Loaded), a.Value.Version)
		}
	}
	out.Gap()
	out.Table(&table)
}

// maxNamed is how many nodes a line names.
const maxNamed = 5

// Named lists the names of nodes, the first of them.
func Named(names []string) string {
	if len(names) > maxNamed {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), len(names)-maxNamed)
	}
	return strings.Join(names, ", ")
}

// printDifferences says how many nodes are up, what is wrong with which of the others, and which nodes have another
// configuration, or another version of criproxy, than most. The nodes are sorted by trouble.
func printDifferences(out *Screen, all []Answer[admin.Report], now time.Time) {
	up, colour := 0, Green
	configs, versions := map[string][]string{}, map[string][]string{} // :: id, or version → nodes
	for _, a := range all {
		if trouble(a) == 3 {
			up++
		}
		if a.Value != nil {
			versions[a.Value.Version] = append(versions[a.Value.Version], a.Name)
			if id := a.Value.Config.ID; id != "" {
				configs[id] = append(configs[id], a.Name)
			}
		}
	}
	if up < len(all) {
		colour = Yellow
	}
	out.Paint(colour, 0, "%d of %d up", up, len(all))
	for _, a := range all {
		if a.Value == nil {
			continue // the error says why
		}
		if trouble(a) == 1 {
			out.Paint(Red, 0, "%s: not ready: %s", a.Name, cmp.Or(a.Value.Trouble(), "no client can connect"))
		}
		for _, b := range a.Value.Backends {
			if b.Failing() {
				out.Paint(Yellow, 0, "%s: %s %s", a.Name, b.Name, calls.Cut(b.Error, 200))
			}
			if b.State == "up" {
				continue
			}
			pods := ""
			if b.Pods != nil {
				pods = ", " + capture.Count(*b.Pods, "pod")
			}
			out.Paint(StateColour(b.State), 0, "%s: %s %s for %s%s", a.Name, b.Name, b.State, ago(now.Add(a.Off), b.Since), pods)
		}
		for _, text := range a.Value.PluginTrouble() {
			out.Paint(Yellow, 0, "%s: %s", a.Name, text)
		}
		if a.Value.Config.Error != "" {
			out.Paint(Red, 0, "%s: refused a configuration %s ago: %s", a.Name, ago(now.Add(a.Off), a.Value.Config.Failed), calls.Cut(a.Value.Config.Error, 200))
		}
	}
	printMinorities(out, "configuration", configs)
	printMinorities(out, "criproxy", versions)
}

// printMinorities says which nodes have another value than most. what is what the values are of.
func printMinorities(out *Screen, what string, by map[string][]string) {
	most := ""
	for value, nodes := range by {
		if len(nodes) > len(by[most]) || len(nodes) == len(by[most]) && value > most {
			most = value
		}
	}
	for _, value := range slices.Sorted(maps.Keys(by)) {
		if value == most {
			continue
		}
		nodes := by[value]
		slices.Sort(nodes)
		have := "nodes have"
		if len(nodes) == 1 {
			have = "node has"
		}
		out.Paint(Yellow, 0, "%d %s %s %s, and not %s: %s", len(nodes), have, what, value, most, Named(nodes))
	}
}
