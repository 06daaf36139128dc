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
	err = eachEvent(r, func(ev *capture.Event) error {
		look.Add(ev)
		last = ev.Time
		return nil
	})
	return look, last, err
}

// given reports whether a flag is on the command line.
func (w *whyFlags) given(name string) bool {
	return slices.ContainsFunc(givenFlags(w.FlagSet), func(s string) bool { return strings.HasPrefix(s, "-"+name+"=") })
}
