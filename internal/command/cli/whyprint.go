package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/observe/show"
	"github.com/criproxy/criproxy/internal/observe/why"
)

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
	if w.nodes.admin != "" {
		asked = " -admin " + w.nodes.admin
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
