package plugins

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/internal/base/dump"
	"github.com/criproxy/criproxy/rewrite"
)

// A Change describes, for people, a field that a plugin has changed. Values of secret fields are
// hidden, long values are cut.
type Change struct {
	Field   string // in the plugin's message: `container_annotations["tier"]`
	Old     string // the value that the plugin got; empty if the field was not set
	New     string
	Removed bool
}

func (c Change) String() string {
	if c.Removed {
		return c.Field + " removed"
	}
	return fmt.Sprintf("%s: %q -> %q", c.Field, c.Old, c.New)
}

// leaf is one field that an answer can change.
type leaf struct {
	answer fieldPath     // in the answer
	state  fieldPath     // in the object's message
	rule   Rule          // never "fields"
	to     *rewrite.Path // in the request; nil if the request has no such field
	secret bool
}

// merge makes the changes in state that answer wants, and returns them.
func (l *leaf) merge(state, answer protoreflect.Message) []change {
	if !l.answer.isSet(answer) {
		return nil
	}
	fd, v := l.state.leaf(), l.answer.get(answer)
	var changes []change
	set := func() {
		if !v.Equal(l.state.get(state)) {
			changes = append(changes, change{leaf: l, old: l.state.get(state), value: v})
			l.state.in(state).Set(fd, v)
		}
	}
	switch l.rule.Kind {
	case "positive", "nonzero":
		n := v.Int()
		if n >= l.rule.Min && n <= l.rule.Max && (n > 0 || n < 0 && l.rule.Kind == "nonzero") {
			set()
		}
	case "nonempty":
		if v.String() != "" {
			set()
		}
	case "any":
		set()
	case "merge", "replace":
		if fd.IsList() {
			if v.List().Len() > 0 {
				set()
			}
			return changes
		}
		return l.mergeMap(state, v.Map())
	}
	return changes
}

func (l *leaf) mergeMap(state protoreflect.Message, answer protoreflect.Map) []change {
	if answer.Len() == 0 {
		return nil
	}
	var changes []change
	known := l.state.in(state).Mutable(l.state.leaf()).Map()
	for _, key := range sortedKeys(textMap(answer)) {
		k := protoreflect.ValueOfString(key).MapKey()
		if v := answer.Get(k); !known.Has(k) || !known.Get(k).Equal(v) {
			changes = append(changes, change{leaf: l, key: key, old: known.Get(k), value: v})
			known.Set(k, v)
		}
	}
	if l.rule.Kind == "merge" {
		return changes
	}
	for _, key := range sortedKeys(textMap(known)) {
		k := protoreflect.ValueOfString(key).MapKey()
		if !answer.Has(k) {
			changes = append(changes, change{leaf: l, key: key, old: known.Get(k), removed: true})
			known.Clear(k)
		}
	}
	return changes
}

// change is one merged change.
type change struct {
	leaf       *leaf
	key        string // of an entry, if the field is a map
	old, value protoreflect.Value
	removed    bool
}

// apply makes the change in m.
func (c *change) apply(m protoreflect.Message) {
	path := c.leaf.state
	if !path.leaf().IsMap() {
		path.in(m).Set(path.leaf(), c.value)
		return
	}
	entries, key := path.in(m).Mutable(path.leaf()).Map(), protoreflect.ValueOfString(c.key).MapKey()
	if c.removed {
		entries.Clear(key)
	} else {
		entries.Set(key, c.value)
	}
}

// field returns a name of the changed field, or map entry, that is the same for two changes of it.
func (c *change) field() string {
	if c.leaf.state.leaf().IsMap() {
		return fmt.Sprintf("%s[%q]", c.leaf.state, c.key)
	}
	return c.leaf.state.String()
}

// shown returns the change for people.
func (c *change) shown() Change {
	return Change{Field: c.field(), Old: c.print(c.old), New: c.print(c.value), Removed: c.removed}
}

func (c *change) print(v protoreflect.Value) string {
	fd := c.leaf.state.leaf()
	switch {
	case !v.IsValid():
		return ""
	case c.leaf.secret:
		return dump.Redacted
	case fd.IsList():
		var b []byte
		for i := range v.List().Len() {
			item, err := encode(v.List().Get(i).Message())
			if err != nil {
				return err.Error()
			}
			b = append(dump.Text{}.Append(append(b, '{'), fd.Message(), item), '}')
		}
		return shortened(string(b))
	default:
		return shortened(v.String())
	}
}

// shortened returns s, or the beginning of a long s, for people.
func shortened(s string) string {
	const limit = 200
	if len(s) <= limit {
		return s
	}
	return fmt.Sprintf("%s... (%d bytes)", strings.ToValidUTF8(s[:limit], ""), len(s))
}

// patch adds the change to those of a request. A later change of the same field, or of the same entry, takes its place.
func (c *change) patch(p *rewrite.Patch) error {
	to, fd := c.leaf.to, c.leaf.state.leaf()
	switch {
	case to == nil:
	case c.removed:
		p.RemoveEntry(to, c.key)
	case fd.IsMap():
		p.SetEntry(to, c.key, c.value.String())
	case fd.IsList():
		var items [][]byte
		for i := range c.value.List().Len() {
			item, err := encode(c.value.List().Get(i).Message())
			if err != nil {
				return err
			}
			items = append(items, item)
		}
		p.SetItems(to, items)
	case fd.Kind() == protoreflect.StringKind:
		p.SetString(to, c.value.String())
	default:
		p.SetVarint(to, uint64(c.value.Int()))
	}
	return nil
}

// textMap returns a map of strings as a Go map.
func textMap(m protoreflect.Map) map[string]string {
	all := make(map[string]string, m.Len())
	m.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		all[k.String()] = v.String()
		return true
	})
	return all
}
