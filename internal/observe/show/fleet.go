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

// Gather asks the nodes of a query with get, which returns JSON, and how far the node's clock is ahead.
func Gather[T any](ctx context.Context, q Query, get func(context.Context, admin.Node) ([]byte, time.Duration, error)) []Answer[T] {
	nodes := q.Nodes
	if nodes == nil {
		nodes = []admin.Node{{Address: q.Path}}
	}
	all := make([]Answer[T], len(nodes))
	one := func(ctx context.Context, i int) (err error) {
		value := new(T)
		if all[i].Raw, all[i].Off, err = get(ctx, nodes[i]); err == nil {
			err = json.Unmarshal(all[i].Raw, value)
		}
		if err == nil {
			all[i].Value = value
		}
		return err
	}
	if q.Nodes == nil {
		nodes[0].Err = one(ctx, 0)
	} else {
		nodes = EachNode(ctx, nodes, q.Timeout, q.Waiting, one)
	}
	for i, n := range nodes {
		all[i].Node = n
	}
	return all
}

// read asks the nodes of a query for the answer of their admin sockets called name.
func read[T any](ctx context.Context, q Query, name string) []Answer[T] {
	return Gather[T](ctx, q, func(ctx context.Context, n admin.Node) ([]byte, time.Duration, error) {
		client := admin.NewClient(n.Address)
		raw, err := client.Read(ctx, name, new(T))
		return raw, client.ClockOff(), err
	})
}

// Finish says which clocks are off, and returns the error about the nodes that did not answer.
func Finish[T any](q Query, all []Answer[T]) error {
	if q.Nodes == nil {
		return all[0].Err
	}
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
	if n.Err != nil || len(raw) < 2 || raw[0] != '{' || !json.Valid(raw) || len(bytes.TrimSpace(raw[1:len(raw)-1])) == 0 {
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

// EncodeAll writes the answers of several nodes for programs, as an array of what [OfNode] returns, and that of one as the
// server wrote it.
func EncodeAll[T any](q Query, all []Answer[T]) error {
	switch {
	case q.Nodes != nil:
	case all[0].Value == nil:
		return nil // Finish says why
	case q.Format == YAML:
		return writeYAML(q.Out, all[0].Raw)
	default:
		_, err := q.Out.Write(all[0].Raw)
		return err
	}
	list := []json.RawMessage{}
	for _, a := range all {
		list = append(list, OfNode(a.Node, a.Raw))
	}
	return Encode(q.Out, q.Format, list)
}
