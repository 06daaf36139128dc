package show

import (
	"cmp"
	"fmt"
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
	for _, line := range differences(all, now) {
		out.Paint(line.Colour, 0, "%s", line.Text)
	}
	var rows [][]Cell
	for _, a := range all {
		if a.Value == nil {
			rows = append(rows, Cells(a.Name, "-", "unknown", "", "", "", "", "", ""))
			rows[len(rows)-1][2].Colour = Red
			continue
		}
		now := now.Add(a.Off) // of that node's clock
		for _, b := range a.Value.Backends {
			row := Cells(a.Name, b.Name, b.State, ago(now, b.Since), count(b.Pods), OrDash(b.Runtime), OrDash(a.Value.Config.ID), since(now, a.Value.Config.Loaded), a.Value.Version)
			row[2].Colour = StateColour(b.State)
			rows = append(rows, row)
		}
	}
	out.Gap()
	out.Table([]string{"NODE", "BACKEND", "STATE", "SINCE", "PODS", "RUNTIME", "CONFIG", "LOADED", "CRIPROXY"}, rows)
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

// differences says how many nodes are up, what is wrong with which of the others, and which nodes have another
// configuration, or another version of criproxy, than most. The nodes are sorted by trouble.
func differences(all []Answer[admin.Report], now time.Time) (lines []Cell) {
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
	lines = append(lines, Cell{fmt.Sprintf("%d of %d up", up, len(all)), colour})
	for _, a := range all {
		if a.Value == nil {
			continue // the error says why
		}
		if trouble(a) == 1 {
			lines = append(lines, Cell{a.Name + ": not ready: " + cmp.Or(a.Value.Trouble(), "no client can connect"), Red})
		}
		for _, b := range a.Value.Backends {
			if b.Failing() {
				lines = append(lines, Cell{fmt.Sprintf("%s: %s %s", a.Name, b.Name, calls.Cut(b.Error, 200)), Yellow})
			}
			if b.State == "up" {
				continue
			}
			text := fmt.Sprintf("%s: %s %s for %s", a.Name, b.Name, b.State, ago(now.Add(a.Off), b.Since))
			if b.Pods != nil {
				text += ", " + capture.Count(*b.Pods, "pod")
			}
			lines = append(lines, Cell{text, StateColour(b.State)})
		}
		for _, text := range a.Value.PluginTrouble() {
			lines = append(lines, Cell{a.Name + ": " + text, Yellow})
		}
		if a.Value.Config.Error != "" {
			lines = append(lines, Cell{fmt.Sprintf("%s: refused a configuration %s ago: %s", a.Name, ago(now.Add(a.Off), a.Value.Config.Failed), calls.Cut(a.Value.Config.Error, 200)), Red})
		}
	}
	return slices.Concat(lines, minorities("configuration", configs), minorities("criproxy", versions))
}

// minorities says which nodes have another value than most. what is what the values are of.
func minorities(what string, by map[string][]string) (lines []Cell) {
	most := ""
	for value, nodes := range by {
		if len(nodes) > len(by[most]) || len(nodes) == len(by[most]) && value > most {
			most = value
		}
	}
	var others []string
	for value := range by {
		if value != most {
			others = append(others, value)
		}
	}
	slices.Sort(others)
	for _, value := range others {
		nodes := by[value]
		slices.Sort(nodes)
		have := "nodes have"
		if len(nodes) == 1 {
			have = "node has"
		}
		lines = append(lines, Cell{fmt.Sprintf("%d %s %s %s, and not %s: %s", len(nodes), have, what, value, most, Named(nodes)), Yellow})
	}
	return lines
}
