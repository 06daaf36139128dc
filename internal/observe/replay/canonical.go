package replay

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/internal/base/dump"
)

// canonical sorts the fields of a message, so that two messages with the same content are equal. It sorts the entries
// of maps by key and, if lists is set, also the messages in lists, for which servers promise no order. It does not sort
// lists of plain values. It calls each for every field; each may change the field, or return false to leave it out. A
// nil each changes nothing.
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
		return 0 // the schema does not know the field
	}
	return int(n.Field.Number())
}

// key returns a text that is the same for equal messages.
func key(md protoreflect.MessageDescriptor, payload []byte) string {
	if md == nil {
		return string(payload)
	}
	root := dump.Node{IsMsg: true, Nodes: canonical(dump.Text{Unsafe: true}.Tree(md, payload), false, nil)}
	return root.String()
}
