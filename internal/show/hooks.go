package show

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/criproxy/criproxy/internal/hook"
)

// Hooks shows the plugins of the criproxy whose admin socket is at path.
func Hooks(ctx context.Context, path string, asJSON bool, out io.Writer) error {
	return show(ctx, path, "hooks", asJSON, out, printHooks)
}

func printHooks(out io.Writer, s *hook.State) {
	if len(s.Plugins) == 0 {
		fmt.Fprintf(out, "There is no plugin in %s.\n", s.Folder)
		return
	}
	for i, p := range s.Plugins {
		if i > 0 {
			fmt.Fprintln(out)
		}
		fmt.Fprintf(out, "%s  %s", p.Name, p.State)
		if p.Socket != "" {
			fmt.Fprintf(out, "  %s  policy %s, timeout %s", p.Socket, p.Policy, p.Timeout)
		}
		fmt.Fprintln(out)
		if p.Error != "" {
			fmt.Fprintf(out, "  error: %s\n", p.Error)
		}
		for _, w := range p.Warnings {
			fmt.Fprintf(out, "  warning: %s\n", w)
		}
		printPoints(out, p.Points)
	}
	fmt.Fprintf(out, "\n%d pods and %d containers are known; %d conflicts between plugins.\n", s.Known["sandbox"], s.Known["container"], s.Conflicts)
}

func printPoints(out io.Writer, points []hook.PointState) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "  POINT\tASKED\tFAILED\tLATE\tREFUSED\tCHANGES\tMEDIAN\tP99")
	for _, p := range points {
		fmt.Fprintf(w, "  %s\t%d\t%d\t%d\t%d\t%d\t%s\t%s\n", p.Name, p.Calls, p.Failed, p.TimedOut, p.Refused, p.Changes, short10(p.Latency.Median), short10(p.Latency.P99))
	}
	_ = w.Flush() // to out; there is nowhere to report its failures
	for _, p := range points {
		if p.LastErrorAt != nil {
			fmt.Fprintf(out, "  last error at %s, %s: %s\n", p.Name, p.LastErrorAt.Format(time.RFC3339), p.LastError)
		}
	}
}

// short10 rounds a time to what people read.
func short10(d time.Duration) string {
	if d > 10*time.Millisecond {
		return d.Round(time.Millisecond).String()
	}
	return d.Round(10 * time.Microsecond).String()
}
