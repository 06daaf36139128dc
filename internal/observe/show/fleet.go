package show

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/criproxy/criproxy/internal/observe/admin"
)

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
		nodes = admin.EachNode(ctx, nodes, q.Timeout, q.Waiting, one)
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
	return admin.UnansweredBy(nodes)
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
	said := struct {
		Node  string `json:"node"`
		Error string `json:"error,omitempty"`
	}{Node: n.Name}
	if n.Err != nil {
		said.Error = n.Err.Error()
	}
	head, _ := json.Marshal(said)
	raw = bytes.TrimSpace(raw)
	if n.Err != nil || len(raw) < 2 || raw[0] != '{' || !json.Valid(raw) || len(bytes.TrimSpace(raw[1:len(raw)-1])) == 0 {
		return head
	}
	return append(append(head[:len(head)-1], ','), raw[1:]...)
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
