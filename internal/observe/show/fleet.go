package show

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/plugins"
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

// moment is how long a command waits without saying for what.
const moment = 900 * time.Millisecond

// An Answer is what a node answered.
type Answer[T any] struct {
	admin.Node
	Value *T // nil if there is none
	Raw   []byte
	Off   time.Duration // how far the node's clock is ahead
}

// Gather asks all nodes of a query with get, which returns JSON.
func Gather[T any](ctx context.Context, q Query, get func(context.Context, admin.Node) ([]byte, error)) []Answer[T] {
	return gather(ctx, q, func(ctx context.Context, a *Answer[T]) (err error) {
		value := new(T)
		if a.Raw, err = get(ctx, a.Node); err == nil {
			err = json.Unmarshal(a.Raw, value)
		}
		if err == nil {
			a.Value = value
		}
		return err
	})
}

// read asks all nodes of a query for the answer of their admin sockets called name.
func read[T any](ctx context.Context, q Query, name string) []Answer[T] {
	return gather(ctx, q, func(ctx context.Context, a *Answer[T]) (err error) {
		client, value := admin.NewClient(a.Address), new(T)
		if a.Raw, err = client.Read(ctx, name, value); err == nil {
			a.Value = value
		}
		a.Off = client.ClockOff()
		return err
	})
}

func gather[T any](ctx context.Context, q Query, ask func(context.Context, *Answer[T]) error) []Answer[T] {
	all := make([]Answer[T], len(q.Nodes))
	for i := range all {
		all[i].Node = q.Nodes[i]
	}
	nodes := EachNode(ctx, q.Nodes, q.Timeout, q.Waiting, func(ctx context.Context, i int) error { return ask(ctx, &all[i]) })
	for i := range all {
		all[i].Node = nodes[i]
	}
	return all
}

// Finish says which clocks are off, and returns the error about the nodes that did not answer.
func Finish[T any](q Query, all []Answer[T]) error {
	var nodes []admin.Node
	for _, a := range all {
		if a.Off != 0 && q.People() {
			q.Paint(Yellow, 0, "%s: %s", a.Name, ClockOff(a.Off))
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

// People reports whether the output is for people.
func (q Query) People() bool { return q.Format != JSON && q.Format != YAML }

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

// EncodeAll writes the answers of all nodes for programs, as an array of what [OfNode] returns.
func EncodeAll[T any](q Query, all []Answer[T]) error {
	list := []json.RawMessage{}
	for _, a := range all {
		list = append(list, OfNode(a.Node, a.Raw))
	}
	return Encode(q.Out, q.Format, list)
}

// PodsOfAll shows the pods of all nodes of a query. It returns the backends whose pods are unknown.
func PodsOfAll(ctx context.Context, q Query, f PodFilter) ([]admin.Silent, error) {
	all := read[admin.Pods](ctx, q, "pods")
	pods := admin.Pods{Pods: []admin.Pod{}}
	for _, a := range all {
		if a.Value == nil {
			pods.Unanswered = append(pods.Unanswered, admin.SilentNode{Node: a.Name, Error: a.Err.Error()})
			continue
		}
		for _, p := range a.Value.Pods {
			p.Node = a.Name
			pods.Pods = append(pods.Pods, p)
		}
		for _, s := range a.Value.Silent {
			s.Node = a.Name
			pods.Silent = append(pods.Silent, s)
		}
	}
	silent, err := q.showPods(&pods, f)
	return silent, errors.Join(err, Finish(q, all))
}

// WhereOfAll shows which node and which backend an id belongs to, as [Where] does. It fails if no node has the id.
func WhereOfAll(ctx context.Context, q Query, ids ...string) error {
	all := read[admin.Pods](ctx, q, "pods")
	places := []Place{}
	var unknown admin.Pods
	for _, a := range all {
		if a.Value == nil {
			continue
		}
		unknown.Silent = append(unknown.Silent, a.Value.Silent...)
		for _, id := range ids {
			found := find(a.Value.Pods, id)
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
	return errors.Join(err, Finish(q, all))
}

// HooksOfAll shows the plugins of the criproxies of all nodes of a query.
func HooksOfAll(ctx context.Context, q Query) error {
	all := read[plugins.State](ctx, q, "hooks")
	if !q.People() {
		return errors.Join(EncodeAll(q, all), Finish(q, all))
	}
	var rows [][]Cell
	for _, a := range all {
		if a.Value == nil {
			continue
		}
		for _, p := range a.Value.Plugins {
			row := append(Cells(a.Name), pluginRow(&p)...)
			rows = append(rows, row)
		}
	}
	if len(rows) == 0 {
		q.Say(0, "No plugin is registered on these nodes.")
	} else {
		q.Table(append([]string{"NODE"}, pluginHead...), rows)
	}
	return Finish(q, all)
}
