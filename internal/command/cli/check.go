package cli

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/observe/show"
	"github.com/criproxy/criproxy/internal/server"
)

// Report is the result of check. Its JSON is stable.
type Report struct {
	server.Examination

	Changes        []config.Change `json:"changes"`                  // in the criproxy that runs; null if unknown
	ChangesUnknown string          `json:"changesUnknown,omitempty"` // why the changes are unknown

	Drift  *server.DriftReport `json:"drift,omitempty"`  // with -drift
	AsRuns string              `json:"asRuns,omitempty"` // the flags that come from the criproxy that runs
}

// aboutCheck describes the command.
const aboutCheck = `check tries a configuration without serving it. It shows the name and the API versions of each runtime,
every mistake, what would change in the criproxy that runs, and which pods are on runtimes that it leaves out. It
fails if something would not work. With -nodes, each node tries the file -f against its own runtimes and pods.`

// Check is the subcommand that tries a configuration without serving it.
func Check(ctx context.Context, args []string, out, errOut io.Writer) error {
	var output outputFlags
	var withDrift *bool
	var verbose verbosity
	nodes := nodeFlags{timeout: unitDuration(time.Minute)}
	fs, f := NewFlags()
	f.own(fs, aboutCheck, out, func() {
		output.flags(fs)
		nodes.choosing(fs)
		fs.StringVar(&f.config, "f", "", "the same as -config: `FILE`; - is standard input")
		withDrift = fs.Bool("drift", false, "show what the profile does not know: fields that look like ids and have no rule, and what the criproxy that runs has seen; with -admin alone, no -connect is needed")
	})
	log := fs.Lookup("v")
	log.Value, log.Usage = &verbose, "also show where each method goes"
	if err := cmp.Or(f.parse(fs, verbose.join(args)), output.check("check")); err != nil {
		return err
	}
	f.given["config"] = f.given["config"] || f.given["f"]
	f.stdin = true
	q := show.Query{Format: output.format, Screen: show.NewScreen(out)}
	if several, err := nodes.instead(ctx, f, &q, errOut); err != nil {
		return err
	} else if several {
		return checkAll(ctx, q, f, fs)
	}
	// Trying a profile, or asking the criproxy that runs, needs no backends.
	f.dry = f.given["profile"] || *withDrift
	r := &Report{}
	if f.given["config"] || !*withDrift {
		asRuns, err := f.asRuns(ctx, fs)
		if err != nil {
			return err
		}
		r.AsRuns = asRuns
	}
	cfg, err := f.readConfig()
	if err != nil {
		return errors.Join(f.absent, err)
	}
	running := cmp.Or(f.running, cfg.Admin)
	if len(cfg.Backends) > 0 {
		changes, unknown := changesOf(ctx, cfg, running)
		if r.Changes = changes; unknown != nil {
			r.ChangesUnknown = unknown.Error()
		}
	}
	left := leftBehind(ctx, cfg, running)
	found, err := server.Examine(ctx, cfg)
	if err != nil {
		return err
	}
	r.Examination = *found
	for i, way := range circles(ctx, cfg) {
		if b := &r.Backends[i]; way != "" {
			b.Error = way
			r.Errors = append(r.Errors, fmt.Sprintf("backend %s %s", b.Name, way))
		}
	}
	r.Errors = append(r.Errors, left...)
	r.warn()
	if *withDrift {
		if r.Drift, err = server.FindDrift(ctx, cfg, len(cfg.Backends) > 0 || f.given["admin"]); err != nil {
			return err
		}
	}
	if output.format == show.Text {
		r.print(q.Screen, bool(verbose))
		if r.Drift != nil {
			r.Drift.Print(calls.Terminal{Writer: out})
		}
	} else if err := show.Encode(out, output.format, r); err != nil {
		return err
	}
	if len(r.Errors) > 0 {
		return errors.New(strings.Join(r.Errors, "\n"))
	}
	return nil
}

// verbosity is the flag -v of check. Like klog's it takes a level; all levels except 0 are the same.
type verbosity bool

func (*verbosity) IsBoolFlag() bool { return true }
func (v *verbosity) String() string { return strconv.FormatBool(bool(*v)) }

// Set implements flag.Value.
func (v *verbosity) Set(s string) error {
	*v = s != "0" && s != "false"
	return nil
}

// join returns args with each "-v LEVEL" as "-v=LEVEL", the only form in which the flag package accepts the value of a
// boolean flag.
func (*verbosity) join(args []string) []string {
	all := slices.Clone(args)
	for i := 0; i+1 < len(all); i++ {
		if _, err := strconv.Atoi(all[i+1]); err == nil && (all[i] == "-v" || all[i] == "--v") {
			all = slices.Replace(all, i, i+2, all[i]+"="+all[i+1])
		}
	}
	return all
}

// warn adds a warning for each change with unexpected consequences.
func (r *Report) warn() {
	for _, c := range r.Changes {
		if c.Setting == "ids" {
			r.Warnings = append(r.Warnings, "ids: kubelet knows the pods of this node by their current ids, and takes pods with other ids for new ones; drain the node before you restart criproxy with this change")
		}
	}
}

// print shows the report to people: first whether the configuration works.
func (r *Report) print(out *show.Screen, verbose bool) {
	sayAsRuns(out, r.AsRuns)
	if len(r.Backends) > 0 {
		r.summary(out)
	} else {
		r.printWarnings(out)
	}
	switch {
	case verbose, len(r.Backends) == 0 && r.Drift == nil: // then the methods are all there is to show
		printMethods(out, r)
	case len(r.Backends) > 0:
		out.Gap()
		out.Say(0, "-v shows where each of %d methods goes.", len(r.Methods))
	}
	if len(r.Backends) > 0 {
		printChanges(out, r.Changes, r.ChangesUnknown)
	}
}

// summary shows whether the configuration works, and the state of the backends.
func (r *Report) summary(out *show.Screen) {
	failing := 0
	var backends show.Table
	for _, b := range r.Backends {
		runtime, versions := b.Runtime, ""
		if len(b.Versions) > 0 {
			versions = "speaks " + strings.Join(b.Versions, ", ")
		}
		if b.Error != "" {
			failing++
			runtime, versions = "FAILS", "" // the errors above say why
		}
		backends.Row("", "  "+b.Name, "", b.Address, "", runtime, "", versions)
	}
	switch {
	case failing > 0:
		out.Paint(show.Red, 0, "This does not work: of %s, %d cannot be used.", capture.Count(len(r.Backends), "backend"), failing)
	case len(r.Errors) > 0:
		out.Paint(show.Red, 0, "This does not work:")
	case len(r.Warnings) > 0:
		out.Paint(show.Yellow, 0, "This works, with warnings:")
	default:
		out.Paint(show.Green, 0, "This works.")
	}
	for _, text := range r.Errors {
		out.Paint(show.Red, 2, "- %s", text)
	}
	r.printWarnings(out)
	out.Gap()
	out.Say(0, "Listens on %s", r.Listen)
	out.Gap()
	out.Say(0, "Backends, the primary first:")
	out.Table(&backends)
	if len(r.Notes) > 0 {
		out.Gap()
		out.Say(0, "Good to know:")
	}
	for _, text := range r.Notes {
		out.Say(2, "- %s", text)
	}
}

func (r *Report) printWarnings(out *show.Screen) {
	for _, text := range r.Warnings {
		out.Paint(show.Yellow, 2, "- %s", text)
	}
}

func printMethods(out *show.Screen, r *Report) {
	out.Gap()
	out.Say(0, "Methods, with the fields that criproxy translates in requests (>) and replies (<):")
	service := ""
	for _, m := range r.Methods {
		if dir := path.Dir(m.Method); dir != service {
			service = dir
			out.Paint(show.Bold, 2, "%s", strings.TrimPrefix(service, "/"))
		}
		out.Say(4, "%-25s goes %s", path.Base(m.Method), m.Goes)
		for _, p := range slices.Sorted(maps.Keys(m.Request)) {
			out.Say(6, "> %-10s %s", m.Request[p], p)
		}
		for _, p := range slices.Sorted(maps.Keys(m.Reply)) {
			out.Say(6, "< %-10s %s", m.Reply[p], p)
		}
	}
}

// own adds the flags of a command that also takes those of serve, and sets the help of the command.
func (f *Flags) own(fs *flag.FlagSet, about string, out io.Writer, add func()) {
	of := map[string]bool{}
	fs.VisitAll(func(one *flag.Flag) { of[one.Name] = true })
	add()
	f.help = func() {
		fmt.Fprintf(out, "criproxy %s\n\nFlags:\n", about)
		fs.VisitAll(func(one *flag.Flag) {
			if !of[one.Name] {
				printFlag(out, one)
			}
		})
		fmt.Fprintf(out, "\nAnd the flags of serve, which say what to examine:\n")
		printServeFlags(out)
	}
}
