package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/daemon"
	"github.com/criproxy/criproxy/internal/inspect"
)

// Report is what check finds. Its JSON is stable.
type Report struct {
	daemon.Examination

	Changes        []config.Change `json:"changes"`                  // in the process that serves now; null if
	ChangesUnknown string          `json:"changesUnknown,omitempty"` // that is unknown, because of this

	Drift *daemon.DriftReport `json:"drift,omitempty"` // with -drift
}

// Check is the subcommand that tries a configuration without serving it.
func Check(ctx context.Context, args []string, out, _ io.Writer) error {
	fs, f := NewFlags()
	asJSON := fs.Bool("json", false, "print the report as JSON")
	withDrift := fs.Bool("drift", false, "show what the profile does not know: fields that look like ids and have no rule, and what the criproxy that serves has seen")
	if err := f.parse(fs, args); err != nil {
		return err
	}
	f.dry = f.given["profile"] // which can be tried without anything to connect to
	cfg, err := f.readConfig()
	if err != nil {
		return err
	}
	changes, unknown := changesOf(ctx, cfg)
	found, err := daemon.Examine(ctx, cfg)
	if err != nil {
		return err
	}
	r := &Report{Examination: *found, Changes: changes}
	if unknown != nil {
		r.ChangesUnknown = unknown.Error()
	}
	if *withDrift {
		if r.Drift, err = daemon.FindDrift(ctx, cfg); err != nil {
			return err
		}
	}
	if *asJSON {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		if err := enc.Encode(r); err != nil {
			return err
		}
	} else {
		r.print(inspect.Terminal{Writer: out})
		printChanges(out, r.Changes, r.ChangesUnknown)
		if r.Drift != nil {
			r.Drift.Print(inspect.Terminal{Writer: out})
		}
	}
	if len(r.Errors) > 0 {
		return errors.New(strings.Join(r.Errors, "\n"))
	}
	return nil
}

// print shows the report to people.
func (r *Report) print(out io.Writer) {
	if len(r.Backends) > 0 {
		fmt.Fprintf(out, "Listens on %s\n\nBackends, the primary first:\n", r.Listen)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, b := range r.Backends {
		what := b.Runtime
		if len(b.Versions) > 0 {
			what += "\tspeaks " + strings.Join(b.Versions, ", ")
		}
		if b.Error != "" {
			what = "FAILS\t" + b.Error
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\n", b.Name, b.Address, what)
	}
	_ = w.Flush()
	if len(r.Backends) > 0 {
		fmt.Fprintln(out)
	}
	fmt.Fprintf(out, "Methods, and what is translated in their requests (>) and replies (<):\n")
	service := ""
	for _, m := range r.Methods {
		if dir := path.Dir(m.Method); dir != service {
			service = dir
			fmt.Fprintf(out, "  %s\n", strings.TrimPrefix(service, "/"))
		}
		fmt.Fprintf(out, "    %-25s goes %s\n", path.Base(m.Method), m.Goes)
		for _, p := range slices.Sorted(maps.Keys(m.Request)) {
			fmt.Fprintf(out, "      > %-10s %s\n", m.Request[p], p)
		}
		for _, p := range slices.Sorted(maps.Keys(m.Reply)) {
			fmt.Fprintf(out, "      < %-10s %s\n", m.Reply[p], p)
		}
	}
	if len(r.Warnings) > 0 {
		fmt.Fprintf(out, "\nWorks, but take note:\n")
		for _, warning := range r.Warnings {
			fmt.Fprint(out, wrap("- "+warning, 2, 100))
		}
	}
}
