package calls

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/internal/base/dump"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// A Difference is one value that the proxy changed in a call.
type Difference struct {
	Backend string `json:"backend,omitempty"` // empty for replies that were merged
	Way     string `json:"way"`               // "request", "reply", "method" or "status"
	Path    string `json:"path"`              // of the field, in a request or a reply
	Before  string `json:"before,omitempty"`  // the received value; empty if there was none
	After   string `json:"after,omitempty"`   // the value that was sent on
}

// A Gap says why a part of a call could not be compared, and how to record it completely.
type Gap struct {
	Backend string `json:"backend,omitempty"`
	Way     string `json:"way,omitempty"` // "request" or "reply"; empty: all of the call
	Why     string `json:"why"`
}

const enlarge = "record with a larger -flight-recorder"

// Diff compares the legs of a call: each backend's request with the client's, and
// the client's replies and status with those of the backends.
func (p *Printer) Diff(c *Call) (found []Difference, gaps []Gap) {
	client := c.Client()
	if client == nil {
		return nil, nil
	}
	if c.Partial {
		return nil, []Gap{{Why: "the beginning of the call was not kept; " + enlarge}}
	}
	legs := slices.Clone(c.Legs[1:])
	slices.SortStableFunc(legs, func(a, b *Leg) int { return slices.Index(p.Order, a.Backend) - slices.Index(p.Order, b.Backend) })
	compare := func(kind capture.Kind, backend string) *comparison {
		return &comparison{text: p.Text, md: capture.MessageOf(p.Schema, client.Method, kind), backend: backend, way: kind.String()}
	}
	add := func(c *comparison) { found, gaps = append(found, c.found...), append(gaps, c.gaps...) }
	replies := compare(capture.Reply, "")
	if len(legs) == 1 {
		replies.backend = legs[0].Backend
	}
	if client.Code == codes.OK || client.Replies.Count > 0 || !slices.ContainsFunc(legs, client.differs) { // otherwise the status is the whole difference
		replies.replies(client, legs)
	}
	for _, l := range legs {
		if l.Method != client.Method {
			found = append(found, Difference{Backend: l.Backend, Way: "method", Before: client.Method, After: l.Method})
		}
		requests := compare(capture.Request, l.Backend)
		requests.inPairs(client.Requests, l.Requests)
		add(requests)
		if len(legs) == 1 {
			add(replies)
		}
		if client.differs(l) {
			found = append(found, Difference{Backend: l.Backend, Way: "status", Before: l.status(), After: client.status()})
		}
	}
	if len(legs) != 1 {
		add(replies)
	}
	return found, gaps
}

// differs reports whether the client got another status than a backend returned.
func (client *Leg) differs(l *Leg) bool { return l.status() != client.status() && l.answered(client) }

// answered reports whether the end of a backend leg can affect the client: not if the client has
// gone first. Of additional calls that criproxy makes, such as lists for a stream of events, only
// failures count.
func (l *Leg) answered(client *Leg) bool {
	if !client.Ended || !l.Ended && client.Code == codes.Canceled {
		return false
	}
	return ShortMethod(l.Method) == ShortMethod(client.Method) || !l.Ended || l.Code != codes.OK
}

// status describes how a leg ended.
func (l *Leg) status() string {
	switch {
	case !l.Ended:
		return "under way"
	case l.Message == "":
		return l.Code.String()
	}
	return l.Code.String() + ": " + l.Message
}

// A comparison compares received messages with those that were sent on.
type comparison struct {
	text         dump.Text
	md           protoreflect.MessageDescriptor
	backend, way string // of what it finds
	found        []Difference
	gaps         []Gap
}

// cannot notes that a part cannot be compared.
func (c *comparison) cannot(why string) {
	if g := (Gap{c.backend, c.way, why}); !slices.Contains(c.gaps, g) {
		c.gaps = append(c.gaps, g)
	}
}

// whole reports whether all messages were kept, and notes a gap if not.
func (c *comparison) whole(ms Messages) bool {
	if len(ms.Kept) < ms.Count {
		c.cannot(fmt.Sprintf("of %d messages only the first %d were compared", ms.Count, len(ms.Kept)))
		return false
	}
	return true
}

// replies compares message by message if the proxy sent on as many as it received. Otherwise it
// compares all of them together, because lists are merged.
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
		c.cannot(fmt.Sprintf("%d messages were received, and %d sent on", came.Count, went.Count))
	} else {
		c.whole(came)
	}
	for i := range min(len(came.Kept), len(went.Kept)) {
		c.add(came.Kept[i:i+1], went.Kept[i:i+1])
	}
}

// add compares messages as if they were one. It notes a gap if a part was not recorded.
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
	if !comparable || bytes.Equal(before, after) {
		return
	}
	for _, ch := range c.text.Diff(c.md, before, after) {
		c.found = append(c.found, Difference{c.backend, c.way, ch.Path, ch.Before, ch.After})
	}
}

// lost returns why a message was not recorded completely.
func (m Message) lost() string {
	if m.Redacted && len(m.Payload) == 0 {
		return "a malformed message was not recorded, because it may hold secrets; record with -unsafe-raw"
	}
	return "a message was not kept completely; " + enlarge
}

// changes prints the differences of a call.
func (p *Printer) changes(c *Call) {
	var b []byte
	found, gaps := p.Diff(c)
	for _, d := range found {
		before, after := Sanitize(d.Before), Sanitize(d.After)
		if d.Way == "method" {
			before, after = strings.TrimPrefix(before, "/"), strings.TrimPrefix(after, "/")
		}
		b = fmt.Appendf(b, "    %s\n", place(d.Way, d.Path, d.Backend))
		if before != "" {
			b = fmt.Appendf(b, "        %s\n", p.colour(red, "- "+before))
		}
		if after != "" {
			b = fmt.Appendf(b, "        %s\n", p.colour(green, "+ "+after))
		}
	}
	for _, g := range gaps {
		b = fmt.Appendf(b, "    %s\n", p.colour(dim, place(g.Way, "not compared", g.Backend)+": "+g.Why))
	}
	if len(found)+len(gaps) == 0 {
		why := "passed unchanged"
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

// place says where a difference or a gap is: in what, and from or to which backend.
func place(way, what, backend string) string {
	backend = Sanitize(backend)
	switch way {
	case "method":
		return "method, to " + backend
	case "status":
		return "< status, from " + backend
	case "request":
		return "> " + what + ", to " + backend
	case "reply":
		what = "< " + what
		if backend != "" {
			what += ", from " + backend
		}
	}
	return what
}
