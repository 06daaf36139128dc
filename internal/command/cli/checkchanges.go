package cli

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"

	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/observe/show"
	"github.com/criproxy/criproxy/internal/server"
)

// changesOf returns what c would change in the process that serves an admin socket. Its error says why the changes are
// unknown.
func changesOf(ctx context.Context, c *config.Config, socket string) ([]config.Change, error) {
	if socket == "" {
		return nil, errors.New("there is no admin socket in this configuration")
	}
	running, err := askOne[config.Settings](ctx, socket, "settings", server.AskTimeout)
	if err != nil {
		return nil, err
	}
	return running.Changes(c.Settings()), nil
}

// leftBehind says which runtimes of the criproxy that runs have pods, and are not in c. A runtime with another name is the
// same if it has the same socket.
func leftBehind(ctx context.Context, c *config.Config, socket string) (errs []string) {
	if socket == "" || len(c.Backends) == 0 {
		return nil
	}
	running, err := askOne[admin.Report](ctx, socket, "status", server.AskTimeout)
	if err != nil {
		return nil // changesOf says so
	}
	for _, b := range running.Backends {
		stays := slices.ContainsFunc(c.Backends, func(one config.Backend) bool {
			return one.Address == b.Address || director.Backend{Name: one.Name}.String() == b.Name
		})
		if !stays && b.Pods != nil && *b.Pods > 0 {
			errs = append(errs, fmt.Sprintf("backend %s has %s, and is not in this configuration: kubelet would take them for gone, and start them anew elsewhere; first drain the node, or move the pods", b.Name, capture.Count(*b.Pods, "pod")))
		}
	}
	return errs
}

// checkAll tries the configuration on all nodes of a query, and shows first where it would not work.
func checkAll(ctx context.Context, q show.Query, f *Flags, fs *flag.FlagSet) error {
	e := newErrand("check", Check, fs, "config", "f")
	if f.config != "" {
		data, err := f.read()
		if err != nil {
			return fmt.Errorf("reading the configuration: %w", err)
		}
		if f.config == "-" {
			return &UsageError{errors.New("check: with -nodes, -f must be a file")}
		}
		e.in, e.here, e.away = data, []string{"-config=" + f.config}, []string{"-config=-"}
	}
	all := onEach[Report](ctx, q, e)
	if !q.People() {
		if err := show.EncodeAll(q, all); err != nil {
			return err
		}
	}
	type said struct {
		colour show.Colour
		text   string
	}
	says := map[said][]string{}
	works := 0
	for _, a := range all {
		if a.Value == nil {
			continue
		}
		if len(a.Value.Errors) == 0 {
			works++
		}
		add := func(colour show.Colour, text string) {
			of := said{colour, text}
			says[of] = append(says[of], a.Name)
		}
		for _, text := range a.Value.Errors {
			add(show.Red, text)
		}
		for _, text := range a.Value.Warnings {
			add(show.Yellow, text)
		}
		for _, c := range a.Value.Changes {
			add(show.Plain, changeText(c))
		}
		if a.Value.ChangesUnknown != "" {
			add(show.Yellow, "what this would change is unknown: "+a.Value.ChangesUnknown)
		}
	}
	if q.People() {
		colour := show.Green
		if works < len(all) {
			colour = show.Red
		}
		q.Paint(colour, 0, "This works on %d of %d nodes.", works, len(all))
		rank := map[show.Colour]int{show.Red: 0, show.Yellow: 1, show.Plain: 2}
		for _, one := range slices.SortedFunc(maps.Keys(says), func(a, b said) int {
			return cmp.Or(cmp.Compare(rank[a.colour], rank[b.colour]), cmp.Compare(len(says[b]), len(says[a])), cmp.Compare(a.text, b.text))
		}) {
			where := show.Named(says[one])
			if len(says[one]) == len(all) && len(all) > 1 {
				where = fmt.Sprintf("all %d nodes", len(all))
			}
			q.Paint(one.colour, 2, "%s: %s", where, one.text)
		}
	}
	err := show.Finish(q, all)
	if err == nil && works < len(all) {
		err = ErrReported
	}
	return err
}

// changeText says what a change is.
func changeText(c config.Change) string {
	text := c.String()
	if c.Restart {
		text += "   (waits for a restart)"
	}
	return text
}

// printChanges shows the changes to people.
func printChanges(out *show.Screen, all []config.Change, unknown string) {
	out.Gap()
	switch {
	case unknown != "":
		out.Say(0, "What this would change in the criproxy that runs is unknown: %s", unknown)
		return
	case len(all) == 0:
		out.Say(0, "Nothing would change in the criproxy that runs.")
		return
	}
	out.Say(0, "Changes in the criproxy that runs:")
	for _, c := range all {
		colour := show.Plain
		if c.Restart {
			colour = show.Yellow
		}
		out.Paint(colour, 2, "%s", changeText(c))
	}
}
