package show

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/criproxy/criproxy/internal/hook"
	"github.com/criproxy/criproxy/internal/observe/admin"
)

// atOnce is how many nodes are asked at a time.
const atOnce = 32

// An Unanswered error names the nodes that did not answer. What the others answered has been shown.
type Unanswered struct{ Nodes []admin.Node }

func (u *Unanswered) Error() string {
	var b strings.Builder
	for i, n := range u.Nodes {
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "%s: %v", n.Name, n.Err)
	}
	return b.String()
}

// Of returns the error about the nodes with an Err, nil if there is none.
func (*Unanswered) Of(nodes []admin.Node) error {
	silent := slices.DeleteFunc(slices.Clone(nodes), func(n admin.Node) bool { return n.Err == nil })
	if len(silent) == 0 {
		return nil
	}
	return &Unanswered{silent}
}

// EachNode calls ask with each node, for some of them at the same time, and each with a context that ends after timeout.
// A node with an Err is not asked. It returns the nodes, with the errors of ask. If the answers take longer than a
// moment, it says on waiting how many there are; nil says nothing.
func EachNode(ctx context.Context, nodes []admin.Node, timeout time.Duration, waiting io.Writer, ask func(ctx context.Context, i int) error) []admin.Node {
	nodes = slices.Clone(nodes)
	var wg sync.WaitGroup
	answered := make(chan struct{}, len(nodes))
	room := make(chan struct{}, atOnce)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range nodes {
			if nodes[i].Err != nil {
				answered <- struct{}{}
				continue
			}
			room <- struct{}{}
			wg.Go(func() {
				defer func() { <-room; answered <- struct{}{} }()
				within, cancel := context.WithTimeout(ctx, timeout)
				defer cancel()
				nodes[i].Err = ask(within, i)
				if errors.Is(nodes[i].Err, context.DeadlineExceeded) && within.Err() != nil {
					nodes[i].Err = fmt.Errorf("no answer within %s", timeout)
				}
			})
		}
		wg.Wait()
	}()
	tick := time.NewTicker(moment)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return nodes
		case <-tick.C:
			if waiting != nil {
				fmt.Fprintf(waiting, "criproxy: %d of %d nodes have answered; waiting for the others\n", len(answered), len(nodes))
				waiting = nil
			}
		}
	}
}

// moment is how long people wait without being told for what.
const moment = 900 * time.Millisecond

// An answer is what a node answered.
type answer[T any] struct {
	admin.Node
	value *T // nil if there is none
	raw   []byte
	off   time.Duration // how far the node's clock is ahead
}

// gather asks all nodes of a query for the answer called name.
func gather[T any](ctx context.Context, q Query, name string) []answer[T] {
	all := make([]answer[T], len(q.Nodes))
	nodes := EachNode(ctx, q.Nodes, q.Timeout, q.Waiting, func(ctx context.Context, i int) (err error) {
		client, value := admin.NewClient(q.Nodes[i].Address), new(T)
		if all[i].raw, err = client.Read(ctx, name, value); err == nil {
			all[i].value = value
		}
		all[i].off = client.ClockOff()
		return err
	})
	for i := range all {
		all[i].Node = nodes[i]
	}
	return all
}

// finish says which clocks are off, and returns the error about the nodes that did not answer.
func finish[T any](q Query, all []answer[T]) error {
	var nodes []admin.Node
	for _, a := range all {
		if a.off != 0 && q.people() {
			q.Paint(Yellow, 0, "%s: %s", a.Name, ClockOff(a.off))
		}
		nodes = append(nodes, a.Node)
	}
	return (*Unanswered)(nil).Of(nodes)
}

// ClockOff says that a clock is ahead by so much, or behind.
func ClockOff(off time.Duration) string {
	way := "ahead of"
	if off < 0 {
		way = "behind"
	}
	return fmt.Sprintf("its clock is %s %s this machine's", off.Abs().Round(time.Second), way)
}

// people reports whether the output is for people.
func (q Query) people() bool { return q.Format != JSON && q.Format != YAML }

// OfNode is an answer of one of several nodes, as programs get it: the JSON object of the node with the key "node", and
// with "error" if there is no answer.
func OfNode(n admin.Node, raw []byte) json.RawMessage {
	head, _ := json.Marshal(struct {
		Node  string `json:"node"`
		Error string `json:"error,omitempty"`
	}{n.Name, errorText(n.Err)})
	raw = bytes.TrimSpace(raw)
	if n.Err != nil || len(raw) < 2 || raw[0] != '{' || !json.Valid(raw) {
		return head
	}
	if len(bytes.TrimSpace(raw[1:len(raw)-1])) == 0 {
		return head
	}
	return append(append(head[:len(head)-1], ','), raw[1:]...)
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// encodeAll writes the answers of all nodes for programs, as an array.
func encodeAll[T any](q Query, all []answer[T]) error {
	list := []json.RawMessage{}
	for _, a := range all {
		list = append(list, OfNode(a.Node, a.raw))
	}
	return Encode(q.Out, q.Format, list)
}

// StatusOfAll shows how the criproxies of all nodes of a query are doing: first what differs, then a table, the nodes in
// trouble first. It returns the reports of the nodes that have answered.
func StatusOfAll(ctx context.Context, q Query) ([]*admin.Report, error) {
	all := gather[admin.Report](ctx, q, "status")
	var reports []*admin.Report
	for _, a := range all {
		if a.value != nil {
			reports = append(reports, a.value)
		}
	}
	if !q.people() {
		if err := encodeAll(q, all); err != nil {
			return nil, err
		}
		return reports, finish(q, all)
	}
	printFleet(q.Screen, all, time.Now())
	return reports, finish(q, all)
}

// trouble ranks nodes: those that do not answer, those that are not ready, those in trouble, and the others.
func trouble(a answer[admin.Report]) int {
	switch {
	case a.value == nil:
		return 0
	case !a.value.Ready:
		return 1
	case a.value.Trouble() != "" || a.value.Config.Error != "":
		return 2
	}
	return 3
}

func printFleet(out *Screen, all []answer[admin.Report], now time.Time) {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b answer[admin.Report]) int {
		return cmp.Or(cmp.Compare(trouble(a), trouble(b)), cmp.Compare(a.Name, b.Name))
	})
	for _, line := range differences(all, now) {
		out.Paint(line.Colour, 0, "%s", line.Text)
	}
	var rows [][]Cell
	for _, a := range all {
		if a.value == nil {
			rows = append(rows, Cells(a.Name, "-", "unknown", "", "", "", "", ""))
			rows[len(rows)-1][2].Colour = Red
			continue
		}
		now := now.Add(a.off) // of that node's clock
		for _, b := range a.value.Backends {
			row := Cells(a.Name, b.Name, b.State, ago(now, b.Since), count(b.Pods), OrDash(b.Runtime), since(now, a.value.Config.Loaded), a.value.Version)
			row[2].Colour = StateColour(b.State)
			rows = append(rows, row)
		}
	}
	out.Gap()
	out.Table([]string{"NODE", "BACKEND", "STATE", "SINCE", "PODS", "RUNTIME", "CONFIGURED", "CRIPROXY"}, rows)
}

// maxNamed is how many nodes a line names.
const maxNamed = 5

// named lists the names of nodes.
func named(names []string) string {
	if len(names) > maxNamed {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), len(names)-maxNamed)
	}
	return strings.Join(names, ", ")
}

// differences says how many nodes are up, what is wrong with which of the others, and which nodes have another version
// of criproxy than most. The nodes are sorted by trouble.
func differences(all []answer[admin.Report], now time.Time) (lines []Cell) {
	up, colour := 0, Green
	versions := map[string][]string{} // :: version → nodes
	for _, a := range all {
		if trouble(a) == 3 {
			up++
		}
		if a.value != nil {
			versions[a.value.Version] = append(versions[a.value.Version], a.Name)
		}
	}
	if up < len(all) {
		colour = Yellow
	}
	lines = append(lines, Cell{fmt.Sprintf("%d of %d up", up, len(all)), colour})
	for _, a := range all {
		if a.value == nil {
			continue // the error says why
		}
		if trouble(a) == 1 {
			lines = append(lines, Cell{a.Name + ": not ready: " + cmp.Or(a.value.Trouble(), "no client can connect"), Red})
		}
		for _, b := range a.value.Backends {
			if b.State == "up" {
				continue
			}
			text := fmt.Sprintf("%s: %s %s for %s", a.Name, b.Name, b.State, ago(now.Add(a.off), b.Since))
			if b.Pods != nil {
				text += fmt.Sprintf(", %d pods", *b.Pods)
			}
			lines = append(lines, Cell{text, StateColour(b.State)})
		}
		if a.value.Config.Error != "" {
			lines = append(lines, Cell{fmt.Sprintf("%s: refused a configuration %s ago: %s", a.Name, ago(now.Add(a.off), a.value.Config.Failed), Cut(a.value.Config.Error, 200)), Red})
		}
	}
	return append(lines, minorities("criproxy", versions)...)
}

// minorities says which nodes have another value than most. what is what the values are of.
func minorities(what string, by map[string][]string) (lines []Cell) {
	most := ""
	for value, nodes := range by {
		if len(nodes) > len(by[most]) || len(nodes) == len(by[most]) && value > most {
			most = value
		}
	}
	var others []string
	for value := range by {
		if value != most {
			others = append(others, value)
		}
	}
	slices.Sort(others)
	for _, value := range others {
		nodes := by[value]
		slices.Sort(nodes)
		have := "nodes have"
		if len(nodes) == 1 {
			have = "node has"
		}
		lines = append(lines, Cell{fmt.Sprintf("%d %s %s %s, and not %s: %s", len(nodes), have, what, value, most, named(nodes)), Yellow})
	}
	return lines
}

// PodsOfAll shows the pods of all nodes of a query. It returns the backends whose pods are unknown.
func PodsOfAll(ctx context.Context, q Query, f PodFilter) ([]admin.Silent, error) {
	all := gather[admin.Pods](ctx, q, "pods")
	pods := admin.Pods{Pods: []admin.Pod{}}
	for _, a := range all {
		if a.value == nil {
			pods.Unanswered = append(pods.Unanswered, admin.SilentNode{Node: a.Name, Error: a.Err.Error()})
			continue
		}
		for _, p := range a.value.Pods {
			p.Node = a.Name
			pods.Pods = append(pods.Pods, p)
		}
		for _, s := range a.value.Silent {
			s.Node = a.Name
			pods.Silent = append(pods.Silent, s)
		}
	}
	silent, err := q.showPods(&pods, f)
	return silent, errors.Join(err, finish(q, all))
}

// WhereOfAll shows which node and which backend an id belongs to, as [Where] does. It fails if no node has the id.
func WhereOfAll(ctx context.Context, q Query, ids ...string) error {
	all := gather[admin.Pods](ctx, q, "pods")
	places := []Place{}
	var unknown admin.Pods
	for _, a := range all {
		if a.value == nil {
			continue
		}
		unknown.Silent = append(unknown.Silent, a.value.Silent...)
		for _, id := range ids {
			found := find(a.value.Pods, id)
			for i := range found {
				found[i].Node = a.Name
			}
			places = append(places, found...)
		}
	}
	var err error
	if len(places) == 0 {
		err = notFound(&unknown, strings.Join(ids, ", "))
	} else {
		err = q.showPlaces(places)
	}
	return errors.Join(err, finish(q, all))
}

// HooksOfAll shows the plugins of the criproxies of all nodes of a query.
func HooksOfAll(ctx context.Context, q Query) error {
	all := gather[hook.State](ctx, q, "hooks")
	if !q.people() {
		return errors.Join(encodeAll(q, all), finish(q, all))
	}
	var rows [][]Cell
	for _, a := range all {
		if a.value == nil {
			continue
		}
		for _, p := range a.value.Plugins {
			row := append(Cells(a.Name), pluginRow(&p)...)
			rows = append(rows, row)
		}
	}
	if len(rows) == 0 {
		q.Say(0, "No plugin is registered on these nodes.")
	} else {
		q.Table(append([]string{"NODE"}, pluginHead...), rows)
	}
	return finish(q, all)
}
