package cli

import (
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
age, and how many of its containers run. It marks pods that are shown from memory because their runtime
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
		ask := show.Pods
		if q.Nodes != nil {
			ask = show.PodsOfAll
		}
		silent, err := ask(ctx, q, filter)
		for _, s := range silent {
			backend := s.Backend
			if s.Node != "" {
				backend += " of " + s.Node
			}
			err = errors.Join(err, fmt.Errorf("the pods of backend %s are missing here: %s", backend, s.Error))
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
	namespace := a.String("n", "", "look up the pod ID in this `NAMESPACE` with kubectl, and ask the criproxy of its node")
	about := `where ID shows which runtime a pod or container is on. ID is its id, as clients see it or as the runtime
made it, or the uid of the pod; the first characters are enough. Or it is the name of the pod, NAME or
NAMESPACE/NAME. With -n, it may also be TYPE/NAME, such as deployment/web, or a label, such as app=web,
that select pods.`
	if err := a.parse(args, out, about, 1); err != nil {
		return err
	}
	id := []string{a.Arg(0)}
	if *namespace != "" {
		pods, err := a.nodes.podNodes(ctx, *namespace, id)
		if err != nil {
			return err
		}
		id = nil
		for _, p := range pods {
			id = append(id, p.UID)
		}
	}
	q, err := a.query(ctx, show.NewScreen(out))
	if err != nil {
		return err
	}
	if q.Nodes != nil {
		return show.WhereOfAll(ctx, q, id...)
	}
	return show.Where(ctx, q, id[0])
}

// Instances is the subcommand that lists the criproxy processes on this machine.
func Instances(ctx context.Context, args []string, out, errOut io.Writer) error {
	a := answerFlags("instances", errOut)
	if err := a.parse(args, out, "instances lists the criproxy processes on this machine whose admin sockets you can open.", 0); err != nil {
		return err
	}
	found := instances(ctx)
	if a.output.format != show.Text {
		return show.Encode(out, a.output.format, append([]Instance{}, found...))
	}
	screen := show.NewScreen(out)
	if len(found) == 0 {
		screen.Say(0, "No criproxy with an admin socket that you can open runs on this machine.")
		return nil
	}
	var rows [][]show.Cell
	for _, one := range found {
		rows = append(rows, show.Cells(fmt.Sprint(one.PID), one.Version, one.Admin))
	}
	screen.Table([]string{"PROCESS", "VERSION", "ADMIN SOCKET"}, rows)
	return nil
}
