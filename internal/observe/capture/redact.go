package capture

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/dump"
	"github.com/criproxy/criproxy/internal/base/wire"
)

// A Redactor overwrites the secrets in a message, in place and in equal length: text becomes stars,
// numbers become zero. [Redactor.HideReply] removes them. It is immutable, and safe for concurrent use. A nil Redactor finds no
// secrets.
type Redactor struct {
	requests, replies map[string]*secretNode // :: full method → where its messages may have secrets; nil: nowhere
}

// secretNode describes the secrets in one type of message. Nil means that there are none.
type secretNode struct {
	fields  map[protowire.Number]*secretField
	low     []*secretField // the same, for small numbers
	all     bool           // every field is secret, known to the schema or not
	unknown bool           // unknown fields are secret, because a known field of the message is
	live    bool           // the message contains a secret at some depth
}

type secretField struct {
	secret bool        // all of its content is secret
	into   *secretNode // the secrets in the message that the field holds
	entry  *secretMap  // of a map field
}

// secretMap describes the secrets in the values of a map.
type secretMap struct {
	secret func(key []byte) bool // reports whether the whole value with this key is secret
	all    *secretField          // a value that is secret as a whole
	some   *secretField          // any other value
	entry  *secretNode           // an entry with any other value
}

// NewRedactor returns a redactor for the methods of a schema.
func NewRedactor(schema *codec.Schema, secrets dump.Secrets) *Redactor {
	r := &Redactor{requests: map[string]*secretNode{}, replies: map[string]*secretNode{}}
	c := redactCompiler{secrets: secrets, nodes: map[nodeKey]*secretNode{}}
	for _, m := range schema.Methods() {
		c.node(m.Input, false)
		c.node(m.Output, false)
	}
	c.settle()
	for _, m := range schema.Methods() {
		r.requests[m.Name], r.replies[m.Name] = c.live(m.Input), c.live(m.Output)
	}
	return r
}

// Message redacts a message of a method, a [Request] or a [Reply], in place. It reports whether it found a secret, and whether it
// could read the message.
func (r *Redactor) Message(method string, kind Kind, b []byte) (redacted, ok bool) {
	return r.concerns(method, kind).redact(b, false)
}

// concerns returns where a message of a method may have secrets, nil if nowhere.
func (r *Redactor) concerns(method string, kind Kind) *secretNode {
	switch {
	case r != nil && kind == Request:
		return r.requests[method]
	case r != nil && kind == Reply:
		return r.replies[method]
	}
	return nil
}

// event redacts the payload of an event in place.
func (n *secretNode) event(ev *Event) {
	switch redacted, ok := n.redact(ev.Payload, ev.Truncated); {
	case !ok: // malformed: its secrets cannot be found
		ev.Payload, ev.Truncated, ev.Redacted = nil, true, true
	case redacted:
		ev.Redacted = true
	}
}

type nodeKey struct {
	name protoreflect.FullName
	all  bool
}

type redactCompiler struct {
	secrets dump.Secrets
	nodes   map[nodeKey]*secretNode
}

// settle finds the nodes from which a secret can be reached.
func (c *redactCompiler) settle() {
	for again := true; again; { // messages may contain themselves: repeat until nothing new is live
		again = false
		for _, n := range c.nodes {
			if !n.live && n.hasSecret() {
				n.live, again = true, true
			}
		}
	}
}

// hasSecret reports whether n, or a message that n leads to, has a secret field.
func (n *secretNode) hasSecret() bool {
	if n.all {
		return true
	}
	for _, f := range n.fields {
		if f.secret || f.into.isLive() {
			return true
		}
		if m := f.entry; m != nil && (m.secret != nil || m.some.secret || m.some.into.isLive()) {
			return true
		}
	}
	return false
}

// live returns the node of md, or nil if no secret can be reached from it.
func (c *redactCompiler) live(md protoreflect.MessageDescriptor) *secretNode {
	if n := c.node(md, false); n.live {
		return n
	}
	return nil
}

func (c *redactCompiler) node(md protoreflect.MessageDescriptor, all bool) *secretNode {
	key := nodeKey{md.FullName(), all}
	if n := c.nodes[key]; n != nil {
		return n
	}
	n := &secretNode{fields: map[protowire.Number]*secretField{}, all: all, unknown: all || c.secrets.Text().HidesUnknown(md)}
	c.nodes[key] = n // messages may contain themselves
	for i := range md.Fields().Len() {
		fd := md.Fields().Get(i)
		var f *secretField
		secret := all || c.secrets.HasField(fd)
		if fd.IsMap() {
			m := &secretMap{all: c.content(fd.MapValue(), true), some: c.content(fd.MapValue(), c.secrets.HasField(fd.MapValue()))}
			if secret {
				m.secret = func([]byte) bool { return true }
			} else if c.secrets.Keys != nil {
				if patterns := c.secrets.Keys(fd); len(patterns) > 0 {
					m.secret = func(key []byte) bool { return dump.MatchesKey(patterns, key) }
				}
			}
			m.entry = &secretNode{fields: map[protowire.Number]*secretField{2: m.some}}
			f = &secretField{entry: m}
		} else {
			f = c.content(fd, secret)
		}
		n.fields[fd.Number()] = f
	}
	for num, f := range n.fields {
		if num < 128 {
			for len(n.low) <= int(num) {
				n.low = append(n.low, nil)
			}
			n.low[num] = f
		}
	}
	return n
}

func (c *redactCompiler) content(fd protoreflect.FieldDescriptor, secret bool) *secretField {
	if fd.Message() != nil {
		return &secretField{into: c.node(fd.Message(), secret)}
	}
	return &secretField{secret: secret}
}

func (n *secretNode) field(num protowire.Number) *secretField {
	if int(num) < len(n.low) {
		return n.low[num]
	}
	if len(n.fields) == 0 {
		return nil
	}
	return n.fields[num]
}

const maxDepth = 100

// redact overwrites the secrets in b. If cut is set, the end of b was cut off, and redact also
// overwrites a field that is incomplete. ok is false if b cannot be read.
func (n *secretNode) redact(b []byte, cut bool) (redacted, ok bool) {
	if n == nil {
		return false, true
	}
	w := redactWalk{cut: cut}
	ok = w.message(n, b, 0)
	return w.found, ok
}

type redactWalk struct{ cut, found bool }

func (w *redactWalk) message(n *secretNode, b []byte, depth int) bool {
	if depth > maxDepth {
		return false
	}
	for len(b) > 0 {
		num, typ, tag := protowire.ConsumeTag(b)
		if tag < 0 {
			return w.cutOff(b)
		}
		f := n.field(num)
		b = b[tag:]
		if typ == protowire.BytesType {
			size, k := protowire.ConsumeVarint(b)
			if k < 0 {
				return w.cutOff(b)
			}
			body := b[k:]
			whole := size <= uint64(len(body))
			if !whole {
				if !w.cut {
					return false
				}
				size = uint64(len(body))
			}
			if !w.field(n, f, body[:size], whole, depth) {
				return false
			}
			b = body[size:]
			continue
		}
		m := protowire.ConsumeFieldValue(num, typ, b)
		if m < 0 {
			return w.cutOff(b)
		}
		if f != nil && typ == protowire.StartGroupType && f.into != nil && !f.into.all {
			body, _ := protowire.ConsumeGroup(num, b) // a part of b
			if !w.message(f.into, body, depth+1) {
				return false
			}
		} else if f == nil && n.unknown || f.isSecret() {
			w.number(wire.Field{Number: num, Type: typ, Value: b[:m]})
		}
		b = b[m:]
	}
	return true
}

// cutOff overwrites the rest of a message whose end is missing: it may be any field.
func (w *redactWalk) cutOff(b []byte) bool {
	w.fill(b)
	return w.cut
}

// field redacts the content of a length-delimited field. If whole is not set, its end is missing.
func (w *redactWalk) field(n *secretNode, f *secretField, body []byte, whole bool, depth int) bool {
	switch {
	case f == nil:
		if n.unknown {
			w.fill(body)
		}
	case f.entry != nil:
		return w.mapEntry(f.entry, body, whole, depth)
	case f.secret:
		w.fill(body)
	case f.into != nil:
		return w.message(f.into, body, depth+1)
	}
	return true
}

func (w *redactWalk) mapEntry(m *secretMap, entry []byte, whole bool, depth int) bool {
	f := m.some
	if m.secret != nil {
		if key, _, _ := wire.MapEntry(entry); !whole || m.secret(key) { // the missing part may be the key
			f = m.all
		}
	}
	for field, err := range wire.Fields(entry) {
		switch {
		case err != nil:
			return w.cutOff(field.Raw)
		case field.Number != 2:
		case field.Type == protowire.BytesType:
			if !w.field(&secretNode{}, f, field.Bytes(), true, depth) {
				return false
			}
		case f.secret:
			w.number(field)
		}
	}
	return true
}

func (w *redactWalk) fill(b []byte) {
	if len(b) > 0 {
		w.found = true
		fill(b)
	}
}

// fill overwrites a secret with stars.
func fill(b []byte) {
	for i := range b {
		b[i] = '*'
	}
}

// number sets a number to zero without changing its length. In a group it redacts every field.
func (w *redactWalk) number(f wire.Field) {
	w.found = true
	switch b := f.Value; f.Type {
	case protowire.VarintType:
		for i := range b {
			b[i] = 0x80
		}
		b[len(b)-1] = 0
	case protowire.Fixed32Type, protowire.Fixed64Type:
		clear(b)
	case protowire.StartGroupType:
		for inside := range wire.Fields(f.Bytes()) { // every field in it
			if inside.Type == protowire.BytesType {
				fill(inside.Bytes())
			} else {
				w.number(inside)
			}
		}
	}
}

// secretWords occur in the keys of credentials.
var secretWords = []string{"token", "secret", "password", "api-key", "apikey", "credential"}

// SecretKey reports whether the metadata under a key is a credential.
func SecretKey(key string) bool {
	switch key {
	case "authorization", "proxy-authorization", "cookie", "set-cookie":
		return true
	case ":authority", "content-type", "user-agent", "grpc-accept-encoding", "traceparent": // of most calls
		return false
	}
	return slices.ContainsFunc(secretWords, func(word string) bool { return strings.Contains(key, word) })
}
