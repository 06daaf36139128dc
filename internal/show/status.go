package show

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/criproxy/criproxy/internal/admin"
	"github.com/criproxy/criproxy/internal/hook"
	"github.com/criproxy/criproxy/internal/state"
)

// Status shows how the criproxy whose admin socket is at path is doing.
func Status(ctx context.Context, path string, asJSON bool, out io.Writer) error {
	return show(ctx, path, "status", asJSON, out, func(out io.Writer, r *state.Report) { printStatus(out, r, time.Now()) })
}

// printStatus shows the report to people, as of now.
func printStatus(out io.Writer, r *state.Report, now time.Time) {
	ready := "ready"
	if !r.Ready {
		ready = "NOT READY: the primary is gone"
		if len(r.Listeners) > 0 && r.Listeners[0].Error != "" {
			ready = "NOT READY: no client can connect"
		}
	}
	fmt.Fprintf(out, "criproxy %s, process %d, for %s, %s\n", r.Version, r.PID, ago(now, r.Started), ready)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nLISTENER\tMODE\tOWNER\tACCESS")
	for _, l := range r.Listeners {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", l.Path, l.Mode, l.Owner, accessText(&l))
	}
	if r.Admin != "" {
		fmt.Fprintf(w, "%s\t%04o\t\tcriproxy's own commands\n", r.Admin, admin.Mode)
	}
	_ = w.Flush() // to out; there is nowhere to report its failures
	for _, l := range r.Listeners {
		switch {
		case l.Error != "":
			fmt.Fprintf(out, "  %s\n", l.Error)
		case l.Lost > 0:
			fmt.Fprintf(out, "  the file %s was gone %d times, and was restored; find out what deletes it\n", l.Path, l.Lost)
		}
	}
	fmt.Fprintln(w, "\nBACKEND\tSTATE\tSINCE\tRUNTIME\tAPI\tPODS\tCONTAINERS\tIMAGES\tSOCKET")
	for _, b := range r.Backends {
		api := "-"
		if len(b.API) > 0 {
			api = b.API[0]
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", b.Name, b.State, ago(now, b.Since), OrDash(b.Runtime), api, count(b.Pods), count(b.Containers), count(b.Images), b.Address)
	}
	_ = w.Flush()
	for _, b := range r.Backends {
		if b.Error != "" {
			fmt.Fprintf(out, "  %s: %s\n", b.Name, b.Error)
		}
		if b.LastKnown {
			fmt.Fprintf(out, "  %s: the numbers are from memory\n", b.Name)
		}
	}
	printPlugins(out, r.Hooks)
	printErrors(out, r.Errors, now)
	printConfig(out, &r.Config, now)
}

// accessText describes the access list of a socket.
func accessText(l *state.Listener) string {
	if len(l.Access) == 0 {
		return "all methods, for every client that can open it"
	}
	var rules []string
	for _, r := range l.Access {
		what := "all methods"
		if len(r.Methods) > 0 {
			what = strings.Join(r.Methods, " ")
		}
		var who []string
		if len(r.UIDs) > 0 {
			who = append(who, fmt.Sprintf("uids %v", r.UIDs))
		}
		if len(r.GIDs) > 0 {
			who = append(who, fmt.Sprintf("gids %v", r.GIDs))
		}
		if len(who) > 0 {
			what += " for " + strings.Join(who, " and ")
		}
		rules = append(rules, what)
	}
	text := strings.Join(rules, "; ")
	if l.Refused > 0 {
		text += fmt.Sprintf(" (%d calls refused)", l.Refused)
	}
	return text
}

func printPlugins(out io.Writer, s *hook.State) {
	if s == nil || len(s.Plugins) == 0 {
		return
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nPLUGIN\tSTATE\tASKED\tFAILED\tREFUSED\tCHANGES")
	for _, p := range s.Plugins {
		var asked, failed, refused, changes int64
		for _, point := range p.Points {
			asked, failed, refused, changes = asked+point.Calls, failed+point.Failed, refused+point.Refused, changes+point.Changes
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%d\n", p.Name, p.State, asked, failed, refused, changes)
	}
	_ = w.Flush() // as above
	for _, p := range s.Plugins {
		if p.Error != "" {
			fmt.Fprintf(out, "  %s: %s\n", p.Name, p.Error)
		}
	}
}

func printErrors(out io.Writer, all []state.CallError, now time.Time) {
	if len(all) == 0 {
		return
	}
	fmt.Fprintln(out, "\nLATEST ERRORS")
	for _, e := range all {
		times := ""
		if e.Count > 1 {
			times = fmt.Sprintf(", %d times", e.Count)
		}
		fmt.Fprintf(out, "  %s ago%s: %s %s: %s\n", ago(now, e.Time), times, e.Method, e.Code, Cut(e.Message, 200))
	}
}

// printConfig shows how the configuration is doing to people, as of now.
func printConfig(out io.Writer, c *state.Config, now time.Time) {
	fmt.Fprintln(out, "\nCONFIGURATION")
	file := "the command line"
	if c.File != "" {
		file = c.File
	}
	fmt.Fprintf(out, "  %s, loaded %s ago, %d reloads\n", file, ago(now, c.Loaded), c.Reloads)
	if c.Error != "" {
		fmt.Fprintf(out, "  NOT RELOADED %s ago, because of\n", ago(now, c.Failed))
		for line := range strings.Lines(c.Error) {
			fmt.Fprintf(out, "    %s\n", strings.TrimRight(line, "\n"))
		}
	}
	for _, w := range c.NeedsRestart {
		fmt.Fprintf(out, "  waits for a restart: %s\n", w)
	}
}

// ago is how long before now t was, in the words of people.
func ago(now, t time.Time) string {
	d := now.Sub(t)
	switch {
	case d < 0:
		return "0s"
	case d < 10*time.Minute:
		return d.Round(time.Second).String()
	case d < 48*time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

func count(n *int) string {
	if n == nil {
		return "-"
	}
	return fmt.Sprint(*n)
}

func OrDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// Cut shortens text to about n bytes.
func Cut(text string, n int) string {
	text = strings.ReplaceAll(text, "\n", " ")
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "") + "..."
}
