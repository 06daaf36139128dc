package show

import (
	"context"
	"fmt"
	"time"

	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/plugins"
)

// Hooks shows the plugins of criproxys.
func Hooks(ctx context.Context, q Query) error {
	_, err := ask(ctx, q, "hooks", printHooks, func(all []Answer[plugins.State]) {
		var table Table
		var failing []string
		answered := 0
		for _, a := range all {
			if a.Value == nil {
				continue
			}
			answered++
			for _, p := range a.Value.Plugins {
				table.Row(append([]string{"NODE", a.Name}, pluginRow(&p)...)...)
				if p.Error != "" {
					failing = append(failing, fmt.Sprintf("%s: %s: %s", a.Name, p.Name, p.Error))
				}
			}
		}
		switch {
		case len(table.rows) > 0:
			q.Table(&table)
		case answered == len(all):
			q.Say(0, "No plugin is registered on these nodes.")
		case answered > 0:
			q.Say(0, "No plugin is registered on the nodes that answered.")
		}
		for _, text := range failing {
			q.Paint(Red, 2, "%s", text)
		}
	})
	return err
}

func printHooks(out *Screen, s *plugins.State) {
	if s.Folder == "" {
		out.Say(0, "Plugins are turned off: -hooks is none.")
		return
	}
	if len(s.Plugins) == 0 {
		out.Say(0, "No plugin is registered in %s.", s.Folder)
		return
	}
	for i, p := range s.Plugins {
		if i > 0 {
			out.Gap()
		}
		head := p.Name + "  " + p.State
		if p.Socket != "" {
			head += fmt.Sprintf("  %s  policy %s, timeout %s", p.Socket, p.Policy, p.Timeout)
		}
		out.Paint(StateColour(p.State), 0, "%s", head)
		if p.Error != "" {
			out.Paint(Red, 2, "error: %s", p.Error)
		}
		for _, w := range p.Warnings {
			out.Paint(Yellow, 2, "warning: %s", w)
		}
		printPoints(out, p.Points)
	}
	out.Gap()
	out.Say(0, "criproxy knows %s and %s. Between plugins: %s.", capture.Count(s.Known["sandbox"], "pod"), capture.Count(s.Known["container"], "container"), capture.Count(s.Conflicts, "conflict"))
}

func printPoints(out *Screen, points []plugins.PointState) {
	var table Table
	for _, p := range points {
		n := func(n int64) string { return fmt.Sprint(n) }
		table.Row("  POINT", "  "+p.Name, "ASKED", n(p.Calls), "FAILED", n(p.Failed), "LATE", n(p.TimedOut), "REFUSED", n(p.Refused),
			"CHANGES", n(p.Changes), "MEDIAN", calls.Rounded(p.Latency.Median), "P99", calls.Rounded(p.Latency.P99))
	}
	out.Table(&table)
	for _, p := range points {
		if p.LastErrorAt != nil {
			out.Paint(Red, 2, "last error at %s, %s: %s", p.Name, p.LastErrorAt.Format(time.RFC3339), p.LastError)
		}
	}
}
