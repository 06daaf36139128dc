package show

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/plugins"
)

// Status shows how criproxys are doing, one perhaps on one line: only what keeps it from answering calls as usual. It returns
// the reports of those that have answered.
func Status(ctx context.Context, q Query, line bool) (reports []*admin.Report, err error) {
	all, err := ask(ctx, q, "status", func(out *Screen, r *admin.Report) {
		if line {
			out.Say(0, "%s", statusLine(r))
		} else {
			printStatus(out, r, time.Now())
		}
	}, func(all []Answer[admin.Report]) { printFleet(q.Screen, all, time.Now()) })
	for _, a := range all {
		if a.Value != nil {
			reports = append(reports, a.Value)
		}
	}
	return reports, err
}

// statusLine has times that do not change while the trouble is the same, for programs that compare lines.
func statusLine(r *admin.Report) string {
	trouble := r.Trouble()
	if trouble == "" {
		return "all runtimes are up"
	}
	var all []string
	for _, b := range r.Backends {
		if b.State != capture.Slow && b.State != capture.Gone {
			continue
		}
		text := fmt.Sprintf("%s %s since %s", b.Name, b.State, b.Since.Local().Format("Jan 2 15:04"))
		if b.Pods != nil {
			text += ", " + capture.Count(*b.Pods, "pod")
		}
		all = append(all, text)
	}
	return cmp.Or(strings.Join(all, "; "), trouble)
}

// printStatus shows the report to people, as of now.
func printStatus(out *Screen, r *admin.Report, now time.Time) {
	is, colour := "ready", Green
	if wrong := r.Wrong(); !r.Ready {
		is, colour = "NOT READY: "+wrong, Red
	} else if wrong != "" {
		is, colour = "ready, DEGRADED: "+wrong, Yellow
	}
	path := ""
	if r.DataPath != "" { // of a version that has two
		path = fmt.Sprintf(", data path %s", r.DataPath)
	}
	out.Paint(colour, 0, "criproxy %s, process %d, for %s%s, %s", r.Version, r.PID, ago(now, r.Started), path, is)
	out.Gap()
	var listeners Table
	for _, l := range r.Listeners {
		listeners.Row("LISTENER", l.Path, "MODE", l.Mode, "OWNER", l.Owner, "ACCESS", accessText(&l))
	}
	if r.Admin != "" {
		listeners.Row("LISTENER", r.Admin, "MODE", fmt.Sprintf("%04o", admin.Mode), "OWNER", "", "ACCESS", "criproxy's own commands")
	}
	out.Table(&listeners)
	for _, l := range r.Listeners {
		switch {
		case l.Error != "":
			out.Paint(Red, 2, "%s", l.Error)
		case l.Lost > 0:
			out.Paint(Yellow, 2, "the file %s was deleted, and criproxy made it again (%s so far); find out which program deletes it", l.Path, capture.Count(l.Lost, "time"))
		}
		if text := l.Connections.TooMany(l.Path); text != "" {
			out.Paint(Yellow, 2, "%s", text)
		}
	}
	out.Gap()
	var backends Table
	for _, b := range r.Backends {
		api := "-"
		if len(b.API) > 0 {
			api = b.API[0]
		}
		backends.Row("BACKEND", b.Name, "STATE", b.State, "SINCE", ago(now, b.Since), "RUNTIME", OrDash(b.Runtime), "API", api,
			"PODS", count(b.Pods), "CONTAINERS", count(b.Containers), "IMAGES", count(b.Images), "SOCKET", b.Address)
	}
	out.Table(backends.withoutDashes())
	for _, b := range r.Backends {
		if b.Error != "" {
			out.Paint(Red, 2, "%s: %s", b.Name, b.Error)
		}
		if b.NeverSeen {
			out.Paint(Yellow, 2, "%s: it was not seen since this node booted", b.Name)
		}
		if b.LastKnown {
			out.Paint(Yellow, 2, "%s: the counts are from the cache", b.Name)
		}
	}
	printOutages(out, r.Backends, now)
	printPlugins(out, r.Hooks)
	LongCalls(out, r.PID, r.StaysFor)
	printErrors(out, r.Errors, now)
	printRecorder(out, r.Recorder, now)
	printExport(out, r.Export, now)
	printConfig(out, &r.Config, now)
}

// printOutages shows when backends were slow or gone.
func printOutages(out *Screen, all []admin.Backend, now time.Time) {
	title := func() { out.Title("OUTAGES") }
	for _, b := range all {
		for _, o := range b.Outages {
			title()
			title = func() {}
			until, to := "until now", now
			if !o.To.IsZero() {
				until, to = "to "+clock(o.To, now)+millis(o.To), o.To
			}
			lasted := capture.Lasting(o.From, to)
			if counts := capture.Concerned(o.Pods, o.Containers); counts != "" {
				lasted += ", " + counts
			}
			out.Say(2, "%s was %s from %s %s, for %s: %s", b.Name, o.State, clock(o.From, now)+millis(o.From), until, lasted, calls.Cut(o.Error, 200))
		}
	}
}

// LongCalls shows for which calls something stays longer than usual. pid is the process that serves now.
func LongCalls(out *Screen, pid int, all []admin.LongCall) {
	for i, c := range all {
		if i == 0 {
			out.Title("LONG CALLS")
		}
		who := "what was before the reload"
		if c.PID != pid {
			who = fmt.Sprintf("process %d, which has handed over,", c.PID)
		}
		out.Say(2, "%s stays for %s", who, c.String())
	}
}

// clock returns the time of day of t, with the date unless it is today.
func clock(t, now time.Time) string {
	if t, now := t.Local(), now.Local(); t.YearDay() != now.YearDay() || t.Year() != now.Year() {
		return t.Format("2006-01-02 15:04:05")
	}
	return t.Local().Format("15:04:05")
}

// millis returns the milliseconds of t, which criproxy events shows, too.
func millis(t time.Time) string { return t.Format(".000") }

func printRecorder(out *Screen, r *admin.Recorder, now time.Time) {
	if r == nil || r.Oldest.IsZero() {
		return
	}
	out.Title("RECORDER")
	out.Say(2, "has the calls of the last %s, since %s: criproxy tail -past shows them; flightRecorder keeps more, and capture all", ago(now, r.Oldest), clock(r.Oldest, now))
	if r.Notable.Before(r.Oldest) && !r.Notable.IsZero() {
		out.Say(2, "has those that failed, were slow or changed something of the last %s, since %s", ago(now, r.Notable), clock(r.Notable, now))
	}
}

func printExport(out *Screen, e *admin.Export, now time.Time) {
	if e == nil {
		return
	}
	out.Title("EXPORT")
	out.Say(2, "%s has taken %s; waiting: %d", e.URL, capture.Count(e.Sent, "record"), e.Queued)
	for why, n := range e.Lost {
		out.Paint(Yellow, 2, "lost: %s: %s", capture.Count(n, "record"), why)
	}
	switch {
	case !e.Failing.IsZero():
		out.Paint(Red, 2, "cannot be reached for %s: %s", ago(now, e.Failing), calls.Cut(e.Error, 200))
	case e.Error != "":
		out.Paint(Red, 2, "%s", calls.Cut(e.Error, 200))
	}
}

// accessText describes the access list of a socket.
func accessText(l *admin.Listener) string {
	if len(l.Access) == 0 {
		return "all methods, for every client that can open it"
	}
	var rules []string
	for _, r := range l.Access {
		what := "all methods"
		if len(r.Methods) > 0 {
			what = strings.Join(r.Methods, " ")
		}
		var users []string
		if len(r.UIDs) > 0 {
			users = append(users, fmt.Sprintf("uids %v", r.UIDs))
		}
		if len(r.GIDs) > 0 {
			users = append(users, fmt.Sprintf("gids %v", r.GIDs))
		}
		if len(users) > 0 {
			what += " for " + strings.Join(users, " and ")
		}
		rules = append(rules, what)
	}
	text := strings.Join(rules, "; ")
	if l.Refused > 0 {
		text += fmt.Sprintf(" (%s refused)", capture.Count(l.Refused, "call"))
	}
	return text
}

func printPlugins(out *Screen, s *plugins.State) {
	if s == nil || len(s.Plugins) == 0 {
		return
	}
	var plugins Table
	for _, p := range s.Plugins {
		plugins.Row(pluginRow(&p)...)
	}
	out.Gap()
	out.Table(&plugins)
	for _, p := range s.Plugins {
		if p.Error != "" {
			out.Paint(Red, 2, "%s: %s", p.Name, p.Error)
		}
	}
}

// pluginRow is the row of a plugin.
func pluginRow(p *plugins.PluginState) []string {
	var asked, failed, refused, changes int64
	for _, point := range p.Points {
		asked, failed, refused, changes = asked+point.Calls, failed+point.Failed, refused+point.Refused, changes+point.Changes
	}
	n := func(n int64) string { return fmt.Sprint(n) }
	return []string{"PLUGIN", p.Name, "STATE", p.State, "ASKED", n(asked), "FAILED", n(failed), "REFUSED", n(refused), "CHANGES", n(changes)}
}

func printErrors(out *Screen, all []admin.CallError, now time.Time) {
	if len(all) == 0 {
		return
	}
	out.Title("LATEST ERRORS")
	for _, e := range all {
		times := ""
		if e.Count > 1 {
			times = ", " + capture.Count(e.Count, "time")
		}
		where := ""
		if e.Backend != "" {
			where = " of " + e.Backend
		}
		out.Say(2, "%s ago%s: %s%s %s: %s", ago(now, e.Time), times, e.Method, where, e.Code, calls.Cut(e.Message, 200))
	}
}

// printConfig shows the state of the configuration to people, as of now.
func printConfig(out *Screen, c *admin.Config, now time.Time) {
	out.Title("CONFIGURATION")
	id := ""
	if c.ID != "" {
		id = " (" + c.ID + ")"
	}
	out.Say(2, "%s%s, loaded %s ago, %s", cmp.Or(c.File, "the command line"), id, ago(now, c.Loaded), capture.Count(c.Reloads, "reload"))
	if c.Error != "" {
		out.Paint(Red, 2, "NOT RELOADED %s ago, because of these mistakes:", ago(now, c.Failed))
		for line := range strings.Lines(c.Error) {
			out.Say(4, "%s", strings.TrimRight(line, "\n"))
		}
	}
	for _, w := range c.NeedsRestart {
		out.Paint(Yellow, 2, "waits for a restart: %s", w)
	}
}

// ago returns the time from t to now, rounded for people.
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

// OrDash returns s, or a dash if s is empty.
func OrDash(s string) string { return cmp.Or(s, "-") }
