package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/show"
)

// Pods is the subcommand that shows the pods of all runtimes.
func Pods(ctx context.Context, args []string, out, errOut io.Writer) error {
	a := askFlags("pods", errOut, show.Wide)
	var filter show.PodFilter
	a.StringVar(&filter.Namespace, "namespace", "", "only pods of namespaces that match `PATTERN`")
	a.StringVar(&filter.Namespace, "n", "", "the same as -namespace: `NAMESPACE`, or a pattern")
	a.StringVar(&filter.Backend, "backend", "", "only pods on runtimes that match `PATTERN`; a primary without a name is called primary")
	again := a.Bool("watch", false, "repeat every two seconds, until Ctrl-C")
	about := `pods shows the pods of all runtimes behind a running criproxy: the runtime that each is on, its state, its
age, and how many of its containers run. It marks pods that are shown from the cache because their runtime
does not answer. It fails if the list is not complete.`
	if err := a.parse(args, out, about, 0); err != nil {
		return err
	}
	if err := (&calls.Filter{Namespace: filter.Namespace, Backend: filter.Backend}).Check(); err != nil {
		return &UsageError{err}
	}
	print := func(to *show.Screen) error {
		q, err := a.query(ctx, to)
		if err != nil {
			return err
		}
		if q.Nodes == nil {
			filter.None = func() error { return backendsMatch(ctx, q.Path, filter.Backend) }
		}
		silent, err := show.Pods(ctx, q, filter)
		for _, s := range silent {
			err = errors.Join(err, fmt.Errorf("the pods of backend %s are missing here: %s", show.OnNode(s.Backend, s.Node), s.Error))
		}
		return err
	}
	if *again {
		return watch(ctx, out, print)
	}
	return print(show.NewScreen(out))
}

// Where is the subcommand that shows which runtime a pod or container is on.
func Where(ctx context.Context, args []string, out, errOut io.Writer) error {
	a := askFlags("where", errOut)
	a.nodes.ofPods(a.FlagSet)
	about := `where ID shows which runtime a pod or container is on. ID is its id, as clients see it or as the runtime
made it, or the uid of the pod; the first characters are enough. Or it is the name of the pod, NAME or
NAMESPACE/NAME. With -n, it may also be TYPE/NAME, such as deployment/web, or a label, such as app=web,
that select pods.`
	if err := a.parse(args, out, about, 1); err != nil {
		return err
	}
	id, err := a.nodes.pods(ctx, a.Args(), errOut)
	if err != nil {
		return err
	}
	q, err := a.query(ctx, show.NewScreen(out))
	if err != nil {
		return err
	}
	return show.Where(ctx, q, id...)
}

// Instances is the subcommand that lists the criproxy processes on this machine.
func Instances(ctx context.Context, args []string, out, errOut io.Writer) error {
	fs := subFlags("instances")
	var output outputFlags
	var asked nodeFlags
	output.flags(fs)
	asked.choosing(fs)
	about := "instances lists the criproxy processes on this machine, or on other nodes, whose admin sockets you can open."
	if err := cmp.Or(parseSub(fs, args, out, about, 0, 0), output.check("instances"), asked.check()); err != nil {
		return err
	}
	var found []Instance
	var unanswered error
	if asked.several() {
		q := show.Query{Format: output.format, Screen: show.NewScreen(out)}
		if err := asked.choose(ctx, &q, errOut); err != nil {
			return err
		}
		e := newErrand("instances", func(context.Context, []string, io.Writer, io.Writer) error {
			return errors.New("it is a socket of this machine; instances without flags lists the processes here")
		}, fs)
		all := onEach[[]Instance](ctx, q, e)
		for _, of := range all {
			if of.Value != nil {
				for _, one := range *of.Value {
					one.Node = of.Name
					found = append(found, one)
				}
			}
		}
		unanswered = show.Finish(q, all)
	} else {
		found = instances(ctx)
	}
	if output.format != show.Text {
		return errors.Join(show.Encode(out, output.format, append([]Instance{}, found...)), unanswered)
	}
	screen := show.NewScreen(out)
	if len(found) == 0 && !asked.several() {
		screen.Say(0, "No criproxy with an admin socket that you can open runs on this machine.")
		return nil
	}
	var table show.Table
	for _, one := range found {
		row := []string{"PROCESS", fmt.Sprint(one.PID), "VERSION", one.Version, "ADMIN SOCKET", one.Admin}
		if asked.several() {
			row = append([]string{"NODE", one.Node}, row...)
		}
		table.Row(row...)
	}
	screen.Table(&table)
	for _, one := range found {
		show.LongCalls(screen, one.PID, one.StaysFor)
	}
	return unanswered
}
