package dump

import (
	"fmt"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// A Node is one field of a message that was taken apart for people.
type Node struct {
	Name  string                       // "container_id", or the number of a field that the schema does not know
	Key   string                       // of an entry of a map, as it is printed: "app" in quotes
	Field protoreflect.FieldDescriptor // nil if the schema does not know it; of an entry, the map
	List  bool                         // there may be several
	Text  string                       // a value that is no message, as [Text] prints it
	Value []byte                       // content of a string or bytes value
	Nodes []*Node                      // the fields of a message
	IsMsg bool
}

// Tree takes the message src of type md apart, in the order of the wire. Like
// [Text.Append] it never fails: what is broken ends the message with a node
// called "!". It does not keep src.
func (t Text) Tree(md protoreflect.MessageDescriptor, src []byte) []*Node {
	return t.tree(md, src, 0)
}

func (t Text) tree(md protoreflect.MessageDescriptor, src []byte, depth int) []*Node {
	if depth > maxTextDepth {
		return []*Node{{Name: "!", Text: "nested too deep"}}
	}
	fields, broken := splitFields(nil, src)
	nodes := make([]*Node, 0, len(fields))
	for i := range fields {
		nodes = t.node(nodes, md, &fields[i], depth)
	}
	if broken > 0 {
		nodes = append(nodes, &Node{Name: "!", Text: fmt.Sprintf("malformed: %d bytes left", broken)})
	}
	return nodes
}

func (t Text) node(nodes []*Node, md protoreflect.MessageDescriptor, f *rawField, depth int) []*Node {
	fd := known(md, f.num, f.typ)
	if fd == nil {
		if md != nil {
			switch named := md.Fields().ByNumber(f.num); {
			case named != nil && t.isSecret(named):
				return append(nodes, &Node{Name: string(named.Name()), Field: named, Text: Redacted})
			case named == nil && t.HidesUnknown(md):
				return append(nodes, &Node{Name: strconv.Itoa(int(f.num)), List: true, Text: Redacted})
			}
		}
		return append(nodes, t.unknownNode(f, depth))
	}
	n := &Node{Name: string(fd.Name()), Field: fd, List: fd.IsList()}
	switch {
	case t.isSecret(fd):
		n.Text = Redacted
	case fd.IsMap():
		t.entryNode(n, fd, f.body(), depth)
	case fd.Message() != nil:
		n.IsMsg, n.Nodes = true, t.tree(fd.Message(), f.body(), depth+1)
	case f.typ == protowire.BytesType && wireType(fd.Kind()) != protowire.BytesType: // packed
		for packed := f.body(); len(packed) > 0; {
			size := protowire.ConsumeFieldValue(f.num, wireType(fd.Kind()), packed)
			if size < 0 {
				return append(nodes, &Node{Name: n.Name, Field: fd, List: true, Text: "<malformed>"})
			}
			nodes = append(nodes, &Node{Name: n.Name, Field: fd, List: true, Text: string(t.scalar(nil, fd, packed[:size]))})
			packed = packed[size:]
		}
		return nodes
	default:
		t.leaf(n, fd, f.v)
	}
	return append(nodes, n)
}

func (t Text) leaf(n *Node, fd protoreflect.FieldDescriptor, v []byte) {
	n.Text = string(t.scalar(nil, fd, v))
	if wireType(fd.Kind()) == protowire.BytesType {
		b, _ := protowire.ConsumeBytes(v)
		n.Value = append([]byte{}, b...)
	}
}

func (t Text) entryNode(n *Node, fd protoreflect.FieldDescriptor, entry []byte, depth int) {
	fields, _ := splitFields(nil, entry)
	var key, value []byte
	for _, f := range fields {
		switch {
		case f.num == 1 && fits(fd.MapKey(), f.typ):
			key = f.v
		case f.num == 2 && fits(fd.MapValue(), f.typ):
			value = f.v
		}
	}
	n.Key = string(t.scalar(nil, fd.MapKey(), key))
	name, _ := protowire.ConsumeBytes(key)
	switch {
	case t.SecretKey != nil && !t.Unsafe && t.SecretKey(fd, name):
		n.Text = Redacted
	case fd.MapValue().Message() != nil:
		b, _ := protowire.ConsumeBytes(value)
		n.IsMsg, n.Nodes = true, t.tree(fd.MapValue().Message(), b, depth+1)
	default:
		t.leaf(n, fd.MapValue(), value)
	}
}

// unknownNode guesses as [Text] does.
func (t Text) unknownNode(f *rawField, depth int) *Node {
	n := &Node{Name: strconv.Itoa(int(f.num)), List: true}
	switch f.typ {
	case protowire.StartGroupType:
		n.IsMsg, n.Nodes = true, t.tree(nil, f.body(), depth+1)
		return n
	case protowire.BytesType:
		b := f.body()
		if !isText(b) && isMessage(b) && depth < maxTextDepth {
			n.IsMsg, n.Nodes = true, t.tree(nil, b, depth+1)
			return n
		}
		n.Value = append([]byte{}, b...)
	}
	n.Text = string(t.guess(nil, f.num, f.typ, f.v, depth))[2:] // without ": "
	return n
}

// label is the name of a node with its place in a path.
func (n *Node) label() string {
	if n.Key != "" {
		return n.Name + "[" + n.Key + "]"
	}
	return n.Name
}

// Lines appends one line for each value in nodes, indented by two more spaces in
// each message.
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
