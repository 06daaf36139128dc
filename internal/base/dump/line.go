package dump

import "google.golang.org/protobuf/reflect/protoreflect"

// Append appends the message src of type md to dst, on one line, and returns dst. A nil md
// prints every field by number. Append does not keep src.
func (t Text) Append(dst []byte, md protoreflect.MessageDescriptor, src []byte) []byte {
	return appendNodes(dst, t.Tree(md, src))
}

// String returns the value of a node on one line. Equal values have equal strings.
func (n *Node) String() string {
	if !n.IsMsg {
		return n.Text
	}
	return string(append(appendNodes([]byte{'{'}, n.Nodes), '}'))
}

// appendNodes appends nodes, separated by spaces.
func appendNodes(dst []byte, nodes []*Node) []byte {
	for i, n := range nodes {
		if i > 0 {
			dst = append(dst, ' ')
		}
		dst = append(dst, n.label()...)
		if n.IsMsg {
			dst = append(appendNodes(append(dst, " {"...), n.Nodes), '}')
		} else {
			dst = append(append(dst, ": "...), n.Text...)
		}
	}
	return dst
}

// label returns the name of a node in a path: with the key, for an entry of a map.
func (n *Node) label() string {
	if n.Key != "" {
		return n.Name + "[" + n.Key + "]"
	}
	return n.Name
}

// Lines appends one line for each value in nodes. Each level of messages is indented by two more
// spaces.
func Lines(dst []byte, nodes []*Node, indent string) []byte {
	for _, n := range nodes {
		dst = append(append(dst, indent...), n.label()...)
		switch {
		case !n.IsMsg:
			dst = append(append(dst, ": "...), n.Text...)
		case len(n.Nodes) == 0:
			dst = append(dst, " {}"...)
		default:
			dst = append(dst, " {\n"...)
			dst = Lines(dst, n.Nodes, indent+"  ")
			dst = append(append(dst, indent...), '}')
		}
		dst = append(dst, '\n')
	}
	return dst
}
