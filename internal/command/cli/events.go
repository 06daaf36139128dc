package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/observe/show"
)

// eventsFlags says which changes to show, and how.
type eventsFlags struct {
	*asking
	since   unitDuration
	follow  bool
	backend string
}

// Events is the subcommand that shows what happened to the runtimes and to criproxy itself.
func Events(ctx context.Context, args []string, out, errOut io.Writer) error {
	e := &eventsFlags{asking: askFlags("events", errOut), since: unitDuration(24 * time.Hour)}
	e.Var(&e.since, "since", "show what happened in the last `TIME`, such as 24h or 7d")
	e.BoolVar(&e.follow, "follow", false, "also show what happens from now on, until Ctrl-C")
	e.StringVar(&e.backend, "backend", "", "only runtimes that match `PATTERN`; a primary without a name is called primary")
	about := `events shows what happened to a running criproxy: when each runtime was slow, gone and up again, why, and
how many pods that concerned; runtimes that were restarted or replaced; reloads and configurations that
were refused; handovers; times in which criproxy did not run; plugins that were down and ready again.
criproxy keeps the latest 10,000 events or more in its state folder, if it has one.`
	if err := e.parse(args, out, about, 0); err != nil {
		return err
	}
	if e.since <= 0 {
		return &UsageError{errors.New("events: -since must be longer than nothing; want a time such as 24h or 7d")}
	}
	filter := calls.Filter{Backend: e.backend}
	if err := filter.Check(); err != nil {
		return &UsageError{err}
	}
	nodes, err := e.nodes.chosen(ctx)
	if err != nil {
		return err
	}
	printer := calls.Printer{Out: e.output.lines(out), Date: true, JSON: e.output.programs(), Colour: show.Colours(out)}
	shown, from := 0, time.Now().Add(-time.Duration(e.since))
	if e.follow && !e.nodes.several() {
		if err := backendsMatch(ctx, nodes[0].Address, e.backend); err != nil {
			return err
		}
	}
	if !e.nodes.several() {
		shown, err = e.show(ctx, admin.NewClient(nodes[0].Address), "", from, &printer, errOut, func(time.Time) {})
		if errors.Is(err, errStopped) {
			fmt.Fprintln(errOut, "criproxy: the criproxy at", nodes[0].Address, "has stopped")
			err = nil
		}
	} else {
		var counting sync.Mutex
		story := &merger{out: printer.Out}
		story.await(nodes)
		err = story.merge(ctx, func(ctx context.Context) error {
			return e.nodes.stream(ctx, nodes, story, errOut, func(ctx context.Context, n *teller) error {
				var text bytes.Buffer
				p := printer
				p.Out, p.Node, p.Wide = &text, n.Name, width(nodes)
				some, err := e.show(ctx, n.client, n.Name, from, &p, errOut, func(at time.Time) {
					if at.IsZero() {
						n.connected()
						p.Off = n.client.ClockOff()
						time.AfterFunc(hold, n.caughtUp) // what happened before is here by then
						return
					}
					story.put(at.Add(-p.Off), text.Bytes())
					text.Reset()
				})
				counting.Lock()
				defer counting.Unlock()
				shown += some
				return err
			})
		})
	}
	if err == nil && shown == 0 && !e.nodes.several() && ctx.Err() == nil {
		if err := backendsMatch(ctx, nodes[0].Address, e.backend); err != nil {
			return err
		}
	}
	if err == nil && shown == 0 && !printer.JSON && ctx.Err() == nil {
		to := ""
		if e.backend != "" {
			to = " to runtimes that match " + e.backend
		}
		fmt.Fprintf(errOut, "criproxy: nothing happened%s in the last %s\n", to, time.Duration(e.since))
	}
	return err
}

// errStopped is why there are no more events to follow.
var errStopped = errors.New("its criproxy has stopped")

// show prints what happened to a criproxy since a time, and returns how much. It calls after with the time of each change
// that it has printed, and first, when there is an answer, with no time. node is empty if there is only one.
func (e *eventsFlags) show(ctx context.Context, client *admin.Client, node string, from time.Time, printer *calls.Printer, errOut io.Writer, after func(time.Time)) (shown int, err error) {
	response, err := client.Get(ctx, changesPath(from, e.follow))
	if err != nil {
		return 0, err
	}
	after(time.Time{})
	if !printer.JSON {
		sayBegins(errOut, node, response.Header.Get(admin.BeginsHeader), from)
	}
	filter := calls.Filter{Backend: e.backend}
	seen := map[capture.ChangeKey]bool{} // after a handover, the next process answers from the beginning
	for response != nil {
		err = eachChange(response.Body, func(c *capture.Change) error {
			if key := c.Key(); !seen[key] && (e.backend == "" || c.Backend != "" && filter.MatchChange(c)) {
				seen[key] = e.follow
				shown++
				printer.Event(c)
				after(c.Time)
			}
			return printer.Err()
		})
		_ = response.Body.Close() // it is read to its end
		if ctx.Err() != nil {
			return shown, nil // Ctrl-C
		}
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) || !e.follow {
			return shown, err
		}
		response = reconnect(ctx, client, changesPath(from, true))
	}
	return shown, errStopped
}

// sayBegins says from when on a criproxy that has forgotten what happened earlier knows anything, if that is after from.
func sayBegins(errOut io.Writer, node, begins string, from time.Time) {
	t, err := time.Parse(time.RFC3339Nano, begins)
	if err != nil || !t.After(from) {
		return // it forgets nothing, or not in this time
	}
	if node != "" {
		node += ": "
	}
	fmt.Fprintf(errOut, "criproxy: %snothing is known from before %s: this criproxy has no state folder, and forgets what happened when it restarts; for a single runtime it uses stateDir only if that folder exists\n", node, t.Local().Format(time.DateTime))
}

// changesPath is the path of the changes since a time at an admin socket; with follow, later ones follow.
func changesPath(since time.Time, follow bool) string {
	return "/changes?" + url.Values{"since": {since.Format(time.RFC3339Nano)}, "follow": {strconv.FormatBool(follow)}}.Encode()
}

// eachChange calls do with each change of an answer.
func eachChange(r io.Reader, do func(*capture.Change) error) error {
	lines := json.NewDecoder(bufio.NewReader(r))
	for {
		var c capture.Change
		if err := lines.Decode(&c); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := do(&c); err != nil {
			return err
		}
	}
}
