package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/show"
)

// asking has the flags of a command that gets its answer from a running criproxy.
type asking struct {
	*flag.FlagSet
	output outputFlags
	nodes  nodeFlags
	errOut io.Writer
}

// askFlags returns the flags of a command. more are formats in addition to json and yaml.
func askFlags(name string, errOut io.Writer, more ...string) *asking {
	a := &asking{FlagSet: subFlags(name), errOut: errOut}
	a.output.flags(a.FlagSet, more...)
	if name == "why" { // which reads all calls of a node
		a.nodes.timeout = unitDuration(time.Minute)
	}
	a.nodes.flags(a.FlagSet)
	return a
}

// parse reads the arguments of the command: flags, and n others.
func (a *asking) parse(args []string, out io.Writer, about string, n int) error {
	return cmp.Or(parseSub(a.FlagSet, args, out, about, n, n), a.output.check(a.Name()))
}

// backendsMatch returns a [UsageError] if patterns of -backend match none of the backends that the criproxy at path has. It
// returns nil if that does not say which it has.
func backendsMatch(ctx context.Context, path, patterns string) error {
	if patterns == "" {
		return nil
	}
	var r admin.Report
	if _, err := admin.NewClient(path).Read(ctx, "status", &r); err != nil {
		return nil
	}
	var names []string
	for _, b := range r.Backends {
		names = append(names, b.Name)
	}
	if err := calls.Unmatched("backend", patterns, "backend", names); err != nil {
		return &UsageError{err}
	}
	return nil
}

// query returns the query whose answer goes to the screen to.
func (a *asking) query(ctx context.Context, to *show.Screen) (show.Query, error) {
	q := show.Query{Format: a.output.format, Screen: to}
	return q, a.nodes.choose(ctx, &q, a.errOut)
}

// ShowHooks is the subcommand that shows the plugins of a running criproxy.
func ShowHooks(ctx context.Context, args []string, out, errOut io.Writer) error {
	a := askFlags("hooks", errOut)
	about := `hooks shows the plugins of a running criproxy: their state, the points at which criproxy asks them, how
often they answered, failed and changed something, and their last errors.`
	if err := a.parse(args, out, about, 0); err != nil {
		return err
	}
	q, err := a.query(ctx, show.NewScreen(out))
	if err != nil {
		return err
	}
	return show.Hooks(ctx, q)
}

// ShowStatus is the subcommand that shows how a running criproxy is doing.
func ShowStatus(ctx context.Context, args []string, out, errOut io.Writer) error {
	a := askFlags("status", errOut)
	again := a.Bool("watch", false, "repeat every two seconds, until Ctrl-C")
	check := a.Bool("exit-code", false, "exit with 3 if a runtime is slow or gone, and with 1 if criproxy is not ready")
	before := a.String("before", "", "with -exit-code: no runtime counts that was no better in this `FILE`, which is what status -o json printed before a change")
	line := a.Bool("line", false, "print one line: which runtimes are slow or gone, since when, and how many pods they have")
	about := `status shows how a running criproxy is doing: its sockets, the runtimes with their pods and outages, the
plugins, the latest errors that clients got, how far back the recorder reaches, and the configuration.`
	if err := a.parse(args, out, about, 0); err != nil {
		return err
	}
	earlier := &admin.Report{}
	if *before != "" {
		text, err := os.ReadFile(*before)
		if err == nil {
			err = json.Unmarshal(text, earlier)
		}
		if err != nil {
			return &UsageError{fmt.Errorf("-before: %w", err)}
		}
	}
	print := func(to *show.Screen) error {
		q, err := a.query(ctx, to)
		if err != nil {
			return err
		}
		if q.Nodes != nil && *before != "" {
			return &UsageError{errors.New("status: -before compares one node with its own state; ask each node by itself")}
		}
		reports, err := show.Status(ctx, q, *line)
		if err != nil || !*check {
			return err
		}
		for _, r := range reports {
			switch {
			case !r.Ready:
				return ErrReported
			case r.Worse(earlier) != "":
				err = ErrDegraded
			}
		}
		return err
	}
	if *again {
		*check = false // -watch ends only with Ctrl-C
		return watch(ctx, out, print)
	}
	return print(show.NewScreen(out))
}
