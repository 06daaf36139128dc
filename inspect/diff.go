package inspect

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
)

// A Difference is what the proxy changed on one leg of a backend.
type Difference struct {
	Backend string         `json:"backend"`
	Method  [2]string      `json:"-"` // client's and backend's, if they are not the same
	Request []codec.Change `json:"-"`
	Reply   []codec.Change `json:"-"`
}

// Diff compares the legs of a call: each backend's request with the client's, and
// the client's replies with those of the backends. order is that of the backends in a
// merged reply.
func (p *Printer) Diff(c *Call, order []string) []Difference {
	client := c.Client()
	if client == nil {
		return nil
	}
	var all []Difference
	legs := slices.Clone(c.Legs[1:])
	slices.SortStableFunc(legs, func(a, b *Leg) int { return slices.Index(order, a.Backend) - slices.Index(order, b.Backend) })
	in, out := messageOf(p.Schema, client.Method, true), messageOf(p.Schema, client.Method, false)
	for _, l := range legs {
		d := Difference{Backend: l.Backend}
		if l.Method != client.Method {
			d.Method = [2]string{client.Method, l.Method}
		}
		for i := range min(len(client.Requests.Kept), len(l.Requests.Kept)) {
			d.Request = append(d.Request, p.compare(in, client.Requests.Kept[i], l.Requests.Kept[i])...)
		}
		all = append(all, d)
	}
	reply := p.diffReplies(out, client, legs)
	if len(legs) == 1 {
		all[0].Reply = reply
	} else if len(reply) > 0 {
		all = append(all, Difference{Reply: reply})
	}
	return slices.DeleteFunc(all, func(d Difference) bool {
		return d.Method[0] == "" && len(d.Request) == 0 && len(d.Reply) == 0
	})
}

// diffReplies compares message by message if there was one backend, and otherwise
// all of the backends' together, as a merged list is.
func (p *Printer) diffReplies(md protoreflect.MessageDescriptor, client *Leg, legs []*Leg) []codec.Change {
	if len(legs) == 0 {
		return nil
	}
	if len(legs) == 1 {
		var changes []codec.Change
		for i := range min(len(legs[0].Replies.Kept), len(client.Replies.Kept)) {
			changes = append(changes, p.compare(md, legs[0].Replies.Kept[i], client.Replies.Kept[i])...)
		}
		return changes
	}
	join := func(legs ...*Leg) (whole Message) {
		for _, l := range legs {
			for _, m := range l.Replies.Kept {
				whole.Payload = append(whole.Payload, m.Payload...)
				whole.Truncated = whole.Truncated || m.Truncated
			}
		}
		return whole
	}
	return p.compare(md, join(legs...), join(client))
}

func (p *Printer) compare(md protoreflect.MessageDescriptor, before, after Message) []codec.Change {
	if bytes.Equal(before.Payload, after.Payload) || before.Truncated || after.Truncated {
		return nil
	}
	return p.Text.Diff(md, before.Payload, after.Payload)
}

// PrintDiff prints a call and what the proxy changed on its way.
func (p *Printer) PrintDiff(c *Call, order []string) {
	p.Line(c)
	var b []byte
	diffs := p.Diff(c, order)
	for _, d := range diffs {
		d.Backend = Tame(d.Backend)
		if d.Method[0] != "" {
			b = fmt.Appendf(b, "    method, to %s\n", d.Backend)
			b = p.change(b, Tame(strings.TrimPrefix(d.Method[0], "/")), Tame(strings.TrimPrefix(d.Method[1], "/")))
		}
		for _, ch := range d.Request {
			b = fmt.Appendf(b, "    > %s, to %s\n", ch.Path, d.Backend)
			b = p.change(b, ch.Before, ch.After)
		}
		for _, ch := range d.Reply {
			b = fmt.Appendf(b, "    < %s", ch.Path)
			if d.Backend != "" {
				b = fmt.Appendf(b, ", from %s", d.Backend)
			}
			b = p.change(append(b, '\n'), ch.Before, ch.After)
		}
	}
	if len(diffs) == 0 {
		why := "passed as it is"
		switch legs := len(c.Legs); {
		case c.Own:
			why = "made by criproxy itself"
		case legs < 2:
			why = "answered without a backend"
		}
		b = fmt.Appendf(b, "    %s\n", p.colour(dim, why))
	}
	p.write(b)
}

func (p *Printer) change(b []byte, before, after string) []byte {
	if before != "" {
		b = fmt.Appendf(b, "        %s\n", p.colour(red, "- "+before))
	}
	if after != "" {
		b = fmt.Appendf(b, "        %s\n", p.colour(green, "+ "+after))
	}
	return b
}
