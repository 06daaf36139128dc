package replay

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/internal/dump"
)

// canonical brings the fields of a message into one order, so that two messages that say
// the same are equal: entries of maps by their key, and with lists also the messages in a
// list, where a server promises no order. Lists of plain values stay as they are. each
// is called for every field, and may change it, or say with false that it is to be left
// out; nil changes nothing.
func canonical(nodes []*dump.Node, lists bool, each func(*dump.Node) bool) []*dump.Node {
	kept := nodes[:0]
	for _, n := range nodes {
		if each != nil && !each(n) {
			continue
		}
		if n.IsMsg {
			n.Nodes = canonical(n.Nodes, lists, each)
		}
		kept = append(kept, n)
	}
	slices.SortStableFunc(kept, func(a, b *dump.Node) int {
		if c := cmp.Or(cmp.Compare(number(a), number(b)), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Key, b.Key)); c != 0 {
			return c
		}
		if lists && a.List && a.IsMsg && b.IsMsg {
			return cmp.Compare(a.String(), b.String())
		}
		return 0
	})
	return kept
}

func number(n *dump.Node) int {
	if n.Field == nil {
		return 0 // those that no schema knows go by name
	}
	return int(n.Field.Number())
}

// key is what equal messages have in common.
func key(md protoreflect.MessageDescriptor, payload []byte) string {
	if md == nil {
		return string(payload)
	}
	root := dump.Node{IsMsg: true, Nodes: canonical(dump.Text{Unsafe: true}.Tree(md, payload), false, nil)}
	return root.String()
}
