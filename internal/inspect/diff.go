package inspect

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/internal/dump"
)

// A Difference is what the proxy changed on one leg of a backend.
type Difference struct {
	Backend string        `json:"backend"`
	Method  [2]string     `json:"-"` // client's and backend's, if they are not the same
	Request []dump.Change `json:"-"`
	Reply   []dump.Change `json:"-"`
	Status  [2]string     `json:"-"` // backend's and client's, if they are not the same
	Gaps    []Gap         `json:"-"` // what may be different, too
}

// A Gap says why messages could not be compared, and how they can be.
type Gap struct {
	Way string // "request" or "reply"; empty: all of the call
	Why string
}

const enlarge = "record with a larger -flight-recorder"

// Diff compares the legs of a call: each backend's request with the client's, and
// the client's replies and status with those of the backends. order is that of the
// backends in a merged reply.
func (p *Printer) Diff(c *Call, order []string) []Difference {
	client := c.Client()
	if client == nil {
		return nil
	}
	if c.Partial {
		return []Difference{{Gaps: []Gap{{Why: "the beginning of the call was not kept; " + enlarge}}}}
	}
	var all []Difference
	told := false // by the status
	legs := slices.Clone(c.Legs[1:])
	slices.SortStableFunc(legs, func(a, b *Leg) int { return slices.Index(order, a.Backend) - slices.Index(order, b.Backend) })
	in, out := messageOf(p.Schema, client.Method, true), messageOf(p.Schema, client.Method, false)
	for _, l := range legs {
		d := Difference{Backend: l.Backend}
		if l.Method != client.Method {
			d.Method = [2]string{client.Method, l.Method}
		}
		if was, is := l.status(), client.status(); was != is && l.answered(client) {
			d.Status = [2]string{was, is}
			told = told || client.Code != codes.OK && client.Replies.Count == 0
		}
		request := comparison{p: p, md: in}
		request.inPairs(client.Requests, l.Requests)
		d.Request, d.Gaps = request.changes, request.gaps("request")
		all = append(all, d)
	}
	reply := comparison{p: p, md: out}
	if !told {
		reply.replies(client, legs)
	}
	if len(legs) == 1 {
		all[0].Reply, all[0].Gaps = reply.changes, append(all[0].Gaps, reply.gaps("reply")...)
	} else {
		all = append(all, Difference{Reply: reply.changes, Gaps: reply.gaps("reply")})
	}
	return slices.DeleteFunc(all, func(d Difference) bool {
		return d.Method[0] == "" && d.Status[1] == "" && len(d.Request)+len(d.Reply)+len(d.Gaps) == 0
	})
}

// answered reports whether the client learns how a backend's leg ended. It does not if it has
// gone before. Of calls that criproxy makes on the side, such as lists for a stream of events, only
// failures count.
func (l *Leg) answered(client *Leg) bool {
	if !client.Ended || !l.Ended && client.Code == codes.Canceled {
		return false
	}
	return ShortMethod(l.Method) == ShortMethod(client.Method) || !l.Ended || l.Code != codes.OK
}

// status is how a leg ended, in words.
func (l *Leg) status() string {
	switch {
	case !l.Ended:
		return "under way"
	case l.Message == "":
		return l.Code.String()
	}
	return l.Code.String() + ": " + l.Message
}

// A comparison is one of messages as they came with messages as they went on.
type comparison struct {
	p       *Printer
	md      protoreflect.MessageDescriptor
	changes []dump.Change
	why     []string // something could not be compared
}

func (c *comparison) gaps(way string) (all []Gap) {
	for _, why := range c.why {
		all = append(all, Gap{way, why})
	}
	return all
}

func (c *comparison) cannot(why string) {
	if !slices.Contains(c.why, why) {
		c.why = append(c.why, why)
	}
}

// whole reports whether all messages are there, and notes if they are not.
func (c *comparison) whole(ms Messages) bool {
	if len(ms.Kept) < ms.Count {
		c.cannot(fmt.Sprintf("of %d messages only the first %d are looked at", ms.Count, len(ms.Kept)))
		return false
	}
	return true
}

// replies compares message by message if as many went on as came, and otherwise all of them
// together, as lists are merged.
func (c *comparison) replies(client *Leg, legs []*Leg) {
	var came Messages // of all backends
	for _, l := range legs {
		came.Kept = append(came.Kept, l.Replies.Kept...)
		came.Count += l.Replies.Count
	}
	went := client.Replies
	switch {
	case len(legs) == 0:
	case len(legs) == 1 && (came.Count == went.Count || came.Count != 1 && went.Count != 1):
		c.inPairs(came, went)
	case c.whole(came) && c.whole(went):
		c.add(came.Kept, went.Kept)
	}
}

func (c *comparison) inPairs(came, went Messages) {
	if came.Count != went.Count {
		c.cannot(fmt.Sprintf("%d messages came, and %d went on", came.Count, went.Count))
	} else {
		c.whole(came)
	}
	for i := range min(len(came.Kept), len(went.Kept)) {
		c.add(came.Kept[i:i+1], went.Kept[i:i+1])
	}
}

// add compares messages as one. It notes a gap where a part was not recorded, because that part
// cannot be compared.
func (c *comparison) add(came, went []Message) {
	comparable := true
	join := func(ms []Message) (whole []byte) {
		for _, m := range ms {
			if m.Truncated {
				comparable = false
				c.cannot(m.lost())
			}
			whole = append(whole, m.Payload...)
		}
		return whole
	}
	before, after := join(came), join(went)
	if comparable && !bytes.Equal(before, after) {
		c.changes = append(c.changes, c.p.Text.Diff(c.md, before, after)...)
	}
}

// lost says why not all of a message was recorded.
func (m Message) lost() string {
	if m.Redacted && len(m.Payload) == 0 {
		return "a message that cannot be read was left out, for it may hold secrets; record with -unsafe-raw"
	}
	return "not all of a message was kept; " + enlarge
}

// PrintDiff prints a call and what the proxy changed on its way.
func (p *Printer) PrintDiff(c *Call, order []string) {
	p.Line(c)
	p.Changes(c, order)
}

// Changes prints what was changed on the way of a call.
func (p *Printer) Changes(c *Call, order []string) {
	var b []byte
	diffs := p.Diff(c, order)
	for _, d := range diffs {
		d.Backend = Sanitize(d.Backend)
		if d.Method[0] != "" {
			b = fmt.Appendf(b, "    method, to %s\n", d.Backend)
			b = p.change(b, Sanitize(strings.TrimPrefix(d.Method[0], "/")), Sanitize(strings.TrimPrefix(d.Method[1], "/")))
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
		if d.Status[1] != "" {
			b = fmt.Appendf(b, "    < status, from %s\n", d.Backend)
			b = p.change(b, Sanitize(d.Status[0]), Sanitize(d.Status[1]))
		}
		for _, g := range d.Gaps {
			b = fmt.Appendf(b, "    %s\n", p.colour(dim, g.text(d.Backend)))
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

// text is a gap on one line.
func (g Gap) text(backend string) string {
	what := "not compared"
	switch g.Way {
	case "request":
		what = "> " + what + ", to " + backend
	case "reply":
		what = "< " + what
		if backend != "" {
			what += ", from " + backend
		}
	}
	return what + ": " + g.Why
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
