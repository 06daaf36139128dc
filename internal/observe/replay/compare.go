package replay

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/internal/base/dump"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// compare learns the names in the answer to a call, and returns the differences from the recorded answer.
func (r *run) compare(c *Call, got *answer) []dump.Change {
	md := capture.MessageOf(r.Schema, c.Method, capture.Reply)
	if len(c.Replies) == 1 && len(got.replies) == 1 && md != nil && !c.open() {
		plain := dump.Text{Unsafe: true}
		r.ids.learn(plain.Tree(md, c.Replies[0].Payload), plain.Tree(md, got.replies[0]))
	}
	if c.open() && len(c.Replies) == 0 {
		return nil // the client did not wait for an answer
	}
	var changes []dump.Change
	if !c.open() || got.err != nil {
		s := status.Convert(got.err)
		was, is := statusText(c.Code.String(), c.Message), statusText(s.Code().String(), s.Message())
		if was != r.ids.recorded(is) {
			changes = append(changes, dump.Change{Path: "status", Before: was, After: is})
		}
	}
	if len(got.replies) == 0 && len(changes) > 0 && !c.open() {
		return changes // with another status, replies are not worth comparing
	}
	was, is := make([][]*dump.Node, len(c.Replies)), make([][]*dump.Node, len(got.replies))
	for i, m := range c.Replies {
		if m.Truncated {
			return changes // the rest of the message is not known
		}
		was[i] = r.tree(md, slices.Clone(m.Payload), false)
	}
	for i, reply := range got.replies {
		r.Redact.Message(c.Method, capture.Reply, reply)
		is[i] = r.tree(md, reply, true)
	}
	if len(was) != 1 || len(is) != 1 {
		return append(changes, diffMessages(was, is)...)
	}
	return append(changes, dump.DiffNodes(was[0], is[0])...)
}

func statusText(code, message string) string {
	return strings.TrimSuffix(code+": "+message, ": ")
}

// tree decodes a reply. It leaves out fields that differ in each run, and replaces new names with the recorded ones.
func (r *run) tree(md protoreflect.MessageDescriptor, payload []byte, now bool) []*dump.Node {
	return canonical(r.Text.Tree(md, payload), true, func(n *dump.Node) bool {
		if n.Field != nil && r.Volatile(n.Field) {
			return false
		}
		if now && !n.IsMsg {
			n.Text, n.Value = r.ids.recorded(n.Text), []byte(r.ids.recorded(string(n.Value)))
		}
		return true
	})
}

// diffMessages compares the messages of a stream without regard to their order, because servers promise no order of
// events.
func diffMessages(was, is [][]*dump.Node) []dump.Change {
	text := func(nodes []*dump.Node) string { return (&dump.Node{IsMsg: true, Nodes: nodes}).String() }
	extra := map[string]int{}
	for _, nodes := range is {
		extra[text(nodes)]++
	}
	var gone, came []int
	for i, nodes := range was {
		if one := text(nodes); extra[one] > 0 {
			extra[one]--
		} else {
			gone = append(gone, i)
		}
	}
	for i, nodes := range is {
		if one := text(nodes); extra[one] > 0 {
			extra[one]--
			came = append(came, i)
		}
	}
	var changes []dump.Change
	for k := range max(len(gone), len(came)) {
		switch {
		case k >= len(came):
			changes = append(changes, dump.Change{Path: fmt.Sprintf("message %d", gone[k]+1), Before: text(was[gone[k]])})
		case k >= len(gone):
			changes = append(changes, dump.Change{Path: fmt.Sprintf("message %d", came[k]+1), After: text(is[came[k]])})
		default:
			for _, c := range dump.DiffNodes(was[gone[k]], is[came[k]]) {
				c.Path = fmt.Sprintf("message %d, %s", gone[k]+1, c.Path)
				changes = append(changes, c)
			}
		}
	}
	return changes
}
