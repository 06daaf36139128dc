package dump

import (
	"fmt"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/internal/base/wire"
)

// A Node is one field of a message, or one value of a packed list.
type Node struct {
	Name  string                       // "container_id", or the number of a field that the schema does not know
	Key   string                       // of an entry of a map, as printed: "app", with quotes
	Field protoreflect.FieldDescriptor // nil if the schema does not know it; of an entry, the map field
	List  bool                         // the field may occur several times
	Text  string                       // a value that is not a message, as [Text] prints it
	Value []byte                       // content of a string or bytes value
	Nodes []*Node                      // the fields of a message
	IsMsg bool
}

// broken is the name of a node that says why a message ends there.
const broken = "!"

// Tree returns the fields of the message src of type md, in wire order. It never fails: a malformed
// message ends with a node called "!". A nil md knows no fields. Tree does not keep src.
func (t Text) Tree(md protoreflect.MessageDescriptor, src []byte) []*Node {
	return t.tree(md, src, 0)
}

func (t Text) tree(md protoreflect.MessageDescriptor, src []byte, depth int) []*Node {
	if depth > maxDepth {
		return []*Node{{Name: broken, Text: "nested too deep"}}
	}
	var nodes []*Node
	for f, err := range wire.Fields(src) {
		if err != nil {
			return append(nodes, malformed(f.Raw))
		}
		nodes = t.node(nodes, md, f, depth)
	}
	return nodes
}

// malformed returns the last node of a malformed message, of which the bytes left cannot be read.
func malformed(left []byte) *Node {
	text := fmt.Sprintf("malformed: %d bytes left", len(left))
	if num, _, tag := protowire.ConsumeTag(left); tag > 0 {
		text = fmt.Sprintf("malformed: field %d: %d bytes left", num, len(left))
	}
	return &Node{Name: broken, Text: text}
}

func (t Text) node(nodes []*Node, md protoreflect.MessageDescriptor, f wire.Field, depth int) []*Node {
	fd := known(md, f)
	if fd == nil {
		if md != nil {
			switch named := md.Fields().ByNumber(f.Number); {
			case named != nil && t.isSecret(named): // even with a wire type that the schema does not allow
				return append(nodes, &Node{Name: string(named.Name()), Field: named, Text: Redacted})
			case named == nil && t.HidesUnknown(md):
				return append(nodes, &Node{Name: strconv.Itoa(int(f.Number)), List: true, Text: Redacted})
			}
		}
		return append(nodes, t.unknown(f, depth))
	}
	n := &Node{Name: string(fd.Name()), Field: fd, List: fd.IsList()}
	switch {
	case t.isSecret(fd):
		n.Text = Redacted
	case fd.IsMap():
		return t.entry(append(nodes, n), n, f.Bytes(), depth)
	case fd.Message() != nil:
		n.IsMsg, n.Nodes = true, t.tree(fd.Message(), f.Bytes(), depth+1)
	case f.Type == protowire.BytesType && wireType(fd.Kind()) != protowire.BytesType:
		return t.values(nodes, fd, f.Bytes())
	default:
		t.leaf(n, fd, f.Value)
	}
	return append(nodes, n)
}

// values appends the values of a packed list.
func (t Text) values(nodes []*Node, fd protoreflect.FieldDescriptor, packed []byte) []*Node {
	add := func(text string) {
		nodes = append(nodes, &Node{Name: string(fd.Name()), Field: fd, List: true, Text: text})
	}
	if len(packed) == 0 {
		add("[]")
	}
	for len(packed) > 0 {
		size := protowire.ConsumeFieldValue(fd.Number(), wireType(fd.Kind()), packed)
		if size < 0 {
			add("<malformed>")
			break
		}
		add(string(t.scalar(nil, fd, packed[:size])))
		packed = packed[size:]
	}
	return nodes
}

func (t Text) leaf(n *Node, fd protoreflect.FieldDescriptor, v []byte) {
	n.Text = string(t.scalar(nil, fd, v))
	if wireType(fd.Kind()) == protowire.BytesType {
		b, _ := protowire.ConsumeBytes(v)
		n.Value = append([]byte{}, b...)
	}
}

// entry fills n, the last of nodes, with an entry of a map. A key or value that is missing, or has
// another type, is the zero value.
func (t Text) entry(nodes []*Node, n *Node, entry []byte, depth int) []*Node {
	fd := n.Field
	key, value, left := wire.Entry(entry, wireType(fd.MapKey().Kind()), wireType(fd.MapValue().Kind()))
	n.Key = string(t.scalar(nil, fd.MapKey(), key.Value))
	switch {
	case !t.Unsafe && t.Secrets.HasKey(fd, key.Bytes()):
		n.Text = Redacted
	case fd.MapValue().Message() != nil:
		n.IsMsg, n.Nodes = true, t.tree(fd.MapValue().Message(), value.Bytes(), depth+1)
	default:
		t.leaf(n, fd.MapValue(), value.Value)
	}
	if left > 0 && n.Text != Redacted {
		return append(nodes, &Node{Name: broken, Text: fmt.Sprintf("malformed: %d bytes left", left)})
	}
	return nodes
}

// unknown returns the node of a field that the schema does not know.
func (t Text) unknown(f wire.Field, depth int) *Node {
	n := &Node{Name: strconv.Itoa(int(f.Number)), List: true}
	body, isMessage := guess(f, depth)
	switch {
	case isMessage:
		n.IsMsg, n.Nodes = true, t.tree(nil, body, depth+1)
	case f.Type == protowire.BytesType:
		n.Text, n.Value = string(t.quote(nil, body)), append([]byte{}, body...)
	case f.Type == protowire.VarintType:
		n.Text = strconv.FormatUint(f.Uint(), 10)
	default:
		n.Text = fmt.Sprintf("%#x", f.Uint())
	}
	return n
}

// known returns the descriptor of a field, or nil if the schema does not know the field, or knows it
// with another type.
func known(md protoreflect.MessageDescriptor, f wire.Field) protoreflect.FieldDescriptor {
	if md == nil {
		return nil
	}
	if fd := md.Fields().ByNumber(f.Number); fd != nil && fits(fd, f.Type) {
		return fd
	}
	return nil
}
