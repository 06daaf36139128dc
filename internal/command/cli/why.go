package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/observe/show"
	"github.com/criproxy/criproxy/internal/observe/why"
)

// whyFlags are the command line of why.
type whyFlags struct {
	*asking
	schema schemaFlags
	since  unitDuration
	file   string // the recording to look at; empty for the criproxy that runs
	socket string // of the criproxy that runs
	pod    string
	line   string // of kubelet's log
	known  []*why.Rule
	means  string // what the line means if no call is its cause
}

const aboutWhy = `why says what is wrong, as far as the recorded calls show it: since when, whom it concerns, which calls show it,
what to do, and how sure that is. POD is a pod's name, NAMESPACE/NAME, a part of that which only one pod
has, such as the name of its Deployment, its uid, or the beginning of its sandbox's id. FILE is a file of
calls; without it, why asks the criproxy that runs. LINE is a line of kubelet's log, in quotes: why explains
it, and says whether the calls show it. why fails if an error or a warning is not over.

What it says of the calls is certain; after "probably" stands a cause that it infers.`

// Why is the subcommand that says what is wrong.
func Why(ctx context.Context, args []string, out, errOut io.Writer) error {
	w := &whyFlags{asking: askFlags("why", errOut), since: unitDuration(time.Hour)}
	w.Var(&w.since, "since", "look at the calls and events of the last `TIME`, such as 10m; of a file, all without this flag")
	explain := w.String("explain", "", "explain this `RULE`, which a finding names, and look at nothing")
	w.schema.flags(w.FlagSet)
	w.nodes.ofPods(w.FlagSet)
	if err := cmp.Or(parseSub(w.FlagSet, args, out, aboutWhy, 0, 2), w.output.check("why")); err != nil {
		return err
	}
	if *explain != "" {
		return w.explain(*explain, show.NewScreen(out))
	}
	if err := w.arguments(); err != nil {
		return err
	}
	if w.output.format == show.Text {
		w.explainLine(show.NewScreen(out))
	}
	if w.file == "" {
		if pods, err := w.nodes.pods(ctx, slices.DeleteFunc([]string{w.pod}, func(p string) bool { return p == "" }), nil); err != nil {
			return err
		} else if len(pods) == 1 {
			w.pod = pods[0]
		} else if len(pods) > 1 {
			return &UsageError{fmt.Errorf("why: these are %d pods, and why looks at one: %s", len(pods), strings.Join(pods, ", "))}
		}
		q, err := w.query(ctx, show.NewScreen(out))
		if err != nil {
			return &BlindError{err}
		}
		if q.Nodes != nil {
			e := newErrand("why", Why, w.FlagSet)
			if w.pod != "" && len(e.args) > 0 && w.line == "" {
				e.args[len(e.args)-1] = w.pod
			}
			return findingsOfAll(ctx, q, e)
		}
		w.socket = q.Path
	}
	report, err := w.look(ctx, errOut)
	if err != nil {
		return &BlindError{err}
	}
	if of := &report.Seen; of.Pod != "" && of.About == 0 && len(report.Findings) == 0 {
		names, more := "criproxy pods", " (-since looks further back)"
		if w.file != "" {
			names, more = "criproxy view "+w.file, ""
			if w.given("since") {
				more = " (without -since, why looks at all of the recording)"
			}
		}
		if of.Limit != "" {
			more = ", of which not all is recorded"
		}
		return &BlindError{fmt.Errorf("why: of %s, none is about %s%s: either the name is wrong (%s shows the names), or no client has asked a runtime about it in this time%s", capture.Count(of.Calls, "call"), of.Pod, of.Near, names, more)}
	}
	if w.output.format == show.Text {
		w.print(show.NewScreen(out), report)
	} else if err := show.Encode(out, w.output.format, report); err != nil {
		return err
	}
	if slices.ContainsFunc(report.Findings, func(f why.Finding) bool { return f.Lasts() }) {
		return ErrReported
	}
	return nil
}

// explain shows what a rule knows.
func (w *whyFlags) explain(name string, s *show.Screen) error {
	var names []string
	for _, r := range why.Rules() {
		if r.Name == name {
			sayRule(s, r)
			return nil
		}
		names = append(names, r.Name)
	}
	return &UsageError{fmt.Errorf("why: there is no rule %q; want one of %s", name, strings.Join(names, ", "))}
}

// explainLine explains the line of kubelet's log, whatever the calls show.
func (w *whyFlags) explainLine(s *show.Screen) {
	for _, rule := range w.known {
		sayRule(s, rule)
	}
	if w.means != "" {
		s.Say(0, "%s.", w.means)
	}
	s.Gap()
}

// sayRule explains a rule.
func sayRule(s *show.Screen, r *why.Rule) {
	s.Paint(show.Bold, 0, "%s: %s", r.Name, r.Means)
	s.Say(2, "shown by: %s", r.Shown)
	s.Say(2, "it is not: %s", r.Not)
	s.Say(2, "what to do: %s", r.Cure)
}

// arguments finds out what each argument is.
func (w *whyFlags) arguments() error {
	if w.since <= 0 {
		return &UsageError{errors.New("why: -since must be longer than nothing; want a time such as 1h")}
	}
	for _, arg := range w.Args() {
		_, missing := os.Stat(arg)
		_, noFile := capture.FormatOf(arg)
		switch {
		case arg == "-" || missing == nil || noFile == nil || filepath.IsAbs(arg):
			w.file = arg
		case strings.Contains(strings.TrimSpace(arg), " "):
			w.line = arg
		default:
			w.pod = arg
		}
	}
	if w.line == "" {
		return nil
	}
	var pod string
	if w.known, w.means, pod = why.Explain(w.line); len(w.known) == 0 && w.means == "" {
		return &BlindError{errors.New("why: no rule knows this line; without it, why looks for everything that it knows")}
	}
	w.pod = cmp.Or(w.pod, pod)
	return nil
}

// look returns what the rules find.
func (w *whyFlags) look(ctx context.Context, errOut io.Writer) (*why.Report, error) {
	o := why.Options{Pod: w.pod}
	for _, r := range w.known {
		o.Rules = append(o.Rules, r.Name)
	}
	if w.file == "" {
		return w.lookNow(ctx, o)
	}
	r, err := capture.Open(w.file)
	if err != nil {
		return nil, err
	}
	defer r.Close() // it was only read
	look, last, err := w.read(r)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		fmt.Fprintf(errOut, "criproxy: %s ends in the middle of an event, perhaps because it is still being written\n", w.file)
	} else if err != nil {
		return nil, fmt.Errorf("%s: %w", w.file, err)
	}
	if w.given("since") {
		o.Since = last.Add(-time.Duration(w.since))
	}
	report := look.Report(o)
	return &report, nil
}

// lookNow reads the calls of the criproxy that runs.
func (w *whyFlags) lookNow(ctx context.Context, o why.Options) (*why.Report, error) {
	o.Now = time.Now()
	o.Since = o.Now.Add(-time.Duration(w.since))
	client := admin.NewClient(w.socket)
	response, err := client.Get(ctx, "/events?blocks=1&large=new&since="+(time.Duration(w.since)+longCall).String())
	if err != nil {
		return nil, fmt.Errorf("%w; to look at a recording, name its FILE", err)
	}
	defer response.Body.Close() // it is read to its end
	r, err := capture.NewReader(response.Body)
	if err != nil {
		return nil, err
	}
	look, _, err := w.read(r)
	if err != nil {
		return nil, err
	}
	changes, err := client.Get(ctx, changesPath(o.Since, false))
	if err != nil {
		return nil, err
	}
	defer changes.Body.Close() // likewise
	if err := eachChange(changes.Body, func(c *capture.Change) error { look.AddChange(c); return nil }); err != nil {
		return nil, err
	}
	report := look.Report(o)
	return &report, nil
}

// read reads all events of a recording, and returns the time of the last one.
func (w *whyFlags) read(r *capture.Reader) (look *why.Look, last time.Time, err error) {
	m, err := w.schema.meaning(r.Header())
	if err != nil {
		return nil, last, err
	}
	look = why.New(m.schema, m.names)
	look.Begin(r.Header())
	for {
		var ev capture.Event
		if err := r.Next(&ev); errors.Is(err, io.EOF) {
			return look, last, nil
		} else if err != nil {
			return look, last, err
		}
		look.Add(&ev)
		last = ev.Time
	}
}

// given reports whether a flag is on the command line.
func (w *whyFlags) given(name string) bool {
	return slices.ContainsFunc(strings.Fields(givenFlags(w.FlagSet, "")), func(s string) bool { return strings.HasPrefix(s, "-"+name+"=") })
}

// wholeFindings is how many findings are shown in full; of the others, only what is wrong. A report fits a screen.
const (
	wholeFindings = 2
	briefFindings = 8
)

// print shows a report to people.
func (w *whyFlags) print(s *show.Screen, r *why.Report) {
	if len(w.known) > 0 {
		s.Paint(show.Bold, 0, "%s", w.shown(r))
		s.Gap()
	}
	if first := r.OfPod(); first != "" {
		s.Paint(show.Bold, 0, "%s", first)
		s.Gap()
	}
	for i := range r.Findings {
		f := &r.Findings[i]
		if i < wholeFindings {
			sayFinding(s, f, w.command(f))
			s.Gap()
			continue
		} else if i == wholeFindings+briefFindings {
			s.Say(0, "... and %d more", len(r.Findings)-i)
			break
		}
		over := ""
		if f.Over {
			over = ", " + strings.TrimPrefix(f.State(), "is ")
		}
		s.Paint(colourOf(f), 0, "%s%s  %s", strings.ToUpper(string(f.Level)), over, f.Headline)
	}
	if len(r.Findings) > wholeFindings {
		s.Say(0, "-o json shows all of each finding.")
		s.Gap()
	}
	if len(r.Findings) == 0 && len(w.known) == 0 {
		s.Paint(show.Bold, 0, "%s", r.Seen.Verdict())
	}
	seen(s, r)
}

// shown says whether the calls show the line of kubelet's log.
func (w *whyFlags) shown(r *why.Report) string {
	switch {
	case slices.ContainsFunc(r.Findings, func(f why.Finding) bool {
		return slices.ContainsFunc(w.known, func(rule *why.Rule) bool { return rule.Name == f.Rule })
	}):
		return "The calls show this:"
	case r.Seen.Calls == 0:
		return r.Seen.Verdict()
	}
	return "The calls do not show this. Without the line, why looks for everything that it knows."
}

// command says which command shows the calls of a finding or, of an outage that no failed call shows, the changes.
func (w *whyFlags) command(f *why.Finding) string {
	asked, of := "", " -backend "+f.About
	if len(f.Backends) == 0 { // it is criproxy itself
		of = ""
	}
	if w.nodes.admin.given != "" {
		asked = " -admin " + w.nodes.admin.given
	}
	switch {
	case w.file != "":
		return fmt.Sprintf("the calls: criproxy view%s %s", cmp.Or(strings.TrimRight(" "+f.Show, " "), of), w.file)
	case f.Show == "":
		return fmt.Sprintf("what happened: criproxy events%s%s", of, asked)
	}
	return fmt.Sprintf("the calls: criproxy dump%s | criproxy view %s -", asked, f.Show)
}

// sayFinding shows a finding, of doctor or of why, in full. command says which command shows more; it may be empty.
func sayFinding(s *show.Screen, f *why.Finding, command string) {
	narrow := *s
	if narrow.Width == 0 || narrow.Width > readable {
		narrow.Width = readable
	}
	s.Paint(colourOf(f), 0, "%s  %s", strings.ToUpper(string(f.Level)), why.Short(f.About, answer))
	if f.Headline == "" { // doctor found it
		narrow.Say(4, "%s", f.Text)
	} else {
		for _, part := range f.Parts(2 * answer) {
			narrow.Say(4, "%s", part)
		}
	}
	if f.Cause != "" {
		narrow.Say(4, "probably: %s", f.Cause)
	}
	said := f.Text
	for _, p := range f.Evidence {
		text := p.Text
		if call, answered, ok := strings.Cut(text, ": "); ok && len(answered) > 20 && strings.Contains(said, answered) {
			text = call + ": as above"
		}
		said += text
		s.Paint(show.Dim, 4, "%s  %s", p.Time.UTC().Format("15:04:05.000"), why.Short(text, answer))
	}
	if command != "" {
		s.Say(4, "%s", command)
	}
	if !f.Since.IsZero() {
		since := f.Since.UTC().Format("2006-01-02 15:04:05")
		if f.Older {
			since += " or before (the calls begin there)"
		}
		s.Say(4, "since %s, last seen %s, %s", since, f.Last.UTC().Format("15:04:05"), f.State())
	}
	if f.Not != "" {
		narrow.Say(4, "it is not: %s", f.Not)
	}
	narrow.Say(4, "-> %s", f.Cure)
	see := "criproxy help runbook" + strings.TrimPrefix(f.Runbook, "docs/runbook.md") // a node may not have the file
	if f.Rule != "" {
		see = "criproxy why -explain " + f.Rule + ", or " + see
	}
	s.Paint(show.Dim, 4, "see %s", see)
}

// readable is the greatest width of a line of prose.
const readable = 100

// answer is how many characters of a line with an answer are shown at most.
const answer = 200

func colourOf(f *why.Finding) show.Colour {
	return map[why.Level]show.Colour{why.Error: show.Red, why.Warning: show.Yellow, why.Note: show.Dim}[f.Level]
}

// seen says what the rules have looked at.
func seen(s *show.Screen, r *why.Report) {
	of := &r.Seen
	if of.Calls == 0 && len(r.Findings) > 0 {
		s.Say(0, "There were no calls to look at.")
	}
	if of.Calls == 0 {
		return
	}
	var clients []string
	for name, n := range of.Clients {
		clients = append(clients, fmt.Sprintf("%d of %s", n, name))
	}
	slices.Sort(clients)
	text := fmt.Sprintf("Looked at %s (%s) to %s, from %s to %s (UTC)", capture.Count(of.Calls, "call"), strings.Join(clients, ", "), cmp.Or(strings.Join(of.Backends, ", "), "no runtime"),
		of.From.UTC().Format("2006-01-02 15:04:05"), of.To.UTC().Format("15:04:05"))
	if of.About > 0 {
		text += "; about " + of.Pod
		if of.Part != "" {
			text += ", the only pod with " + of.Part + " in its name"
		}
		text += fmt.Sprintf(": %d", of.About)
		if of.Last != "" {
			text += ", the last that changed it: " + of.Last
		}
	}
	if of.Missed > 0 {
		text += fmt.Sprintf("; missing: %s", capture.Count(of.Missed, "event"))
	}
	s.Say(0, "%s.", text)
	if of.Limit != "" {
		s.Say(0, "%s", of.Limit)
	}
	if of.Inferred {
		s.Say(0, "No conditions of runtimes are recorded here: outages are inferred from calls.")
	}
}
