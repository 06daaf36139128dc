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

// A Difference is one value that the proxy changed in a call, or a gap: a part of the call that
// could not be compared.
type Difference struct {
	Backend string `json:"backend,omitempty"` // empty for replies that were merged
	Way     string `json:"way"`               // "request", "reply", "method" or "status"
	Path    string `json:"path"`              // of the field, in a request or a reply
	Before  string `json:"before,omitempty"`  // the received value; empty if there was none
	After   string `json:"after,omitempty"`   // the value that was sent on
	Gap     string `json:"-"`                 // why a part was not compared; Path and values are then empty
}

// A Gap says why a part of a call could not be compared, and how to record it completely.
type Gap struct {
	Backend string `json:"backend,omitempty"`
	Way     string `json:"way,omitempty"` // "request" or "reply"; empty: all of the call
	Why     string `json:"why"`
}

// Gaps separates differences from gaps.
func Gaps(all []Difference) (found []Difference, gaps []Gap) {
	for _, d := range all {
		if d.Gap == "" {
			found = append(found, d)
		} else {
			gaps = append(gaps, Gap{d.Backend, d.Way, d.Gap})
		}
	}
	return found, gaps
}

const enlarge = "record with a larger -flight-recorder"

// Diff compares the legs of a call: each backend's request with the client's, and
// the client's replies and status with those of the backends.
func (p *Printer) Diff(c *Call) (all []Difference) {
	client := c.Client()
	if client == nil {
		return nil
	}
	if c.Partial {
		return []Difference{{Gap: "the beginning of the call was not kept; " + enlarge}}
	}
	legs := slices.Clone(c.Legs[1:])
	slices.SortStableFunc(legs, func(a, b *Leg) int { return slices.Index(p.Order, a.Backend) - slices.Index(p.Order, b.Backend) })
	replies := comparison{p: p, md: capture.MessageOf(p.Schema, client.Method, capture.Reply)}
	if client.Code == codes.OK || client.Replies.Count > 0 || !slices.ContainsFunc(legs, client.differs) { // otherwise the status is the whole difference
		replies.replies(client, legs)
	}
	for _, l := range legs {
		if l.Method != client.Method {
			all = append(all, Difference{Backend: l.Backend, Way: "method", Before: client.Method, After: l.Method})
		}
		requests := comparison{p: p, md: capture.MessageOf(p.Schema, client.Method, capture.Request)}
		requests.inPairs(client.Requests, l.Requests)
		all = requests.appendChanges(all, l.Backend, "request")
		if len(legs) == 1 {
			all = replies.appendChanges(all, l.Backend, "reply")
		}
		if client.differs(l) {
			all = append(all, Difference{Backend: l.Backend, Way: "status", Before: l.status(), After: client.status()})
		}
		all = requests.appendGaps(all, l.Backend, "request")
		if len(legs) == 1 {
			all = replies.appendGaps(all, l.Backend, "reply")
		}
	}
	if len(legs) != 1 {
		all = replies.appendGaps(replies.appendChanges(all, "", "reply"), "", "reply")
	}
	return all
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
	p       *Printer
	md      protoreflect.MessageDescriptor
	changes []dump.Change
	why     []string // reasons why a part could not be compared
}

func (c *comparison) appendChanges(all []Difference, backend, way string) []Difference {
	for _, ch := range c.changes {
		all = append(all, Difference{Backend: backend, Way: way, Path: ch.Path, Before: ch.Before, After: ch.After})
	}
	return all
}

func (c *comparison) appendGaps(all []Difference, backend, way string) []Difference {
	for _, why := range c.why {
		all = append(all, Difference{Backend: backend, Way: way, Gap: why})
	}
	return all
}

func (c *comparison) cannot(why string) {
	if !slices.Contains(c.why, why) {
		c.why = append(c.why, why)
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
	if comparable && !bytes.Equal(before, after) {
		c.changes = append(c.changes, c.p.Text.Diff(c.md, before, after)...)
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
	diffs := p.Diff(c)
	for _, d := range diffs {
		before, after := Sanitize(d.Before), Sanitize(d.After)
		switch {
		case d.Gap != "":
			b = fmt.Appendf(b, "    %s\n", p.colour(dim, d.place("not compared")+": "+d.Gap))
			continue
		case d.Way == "method":
			before, after = strings.TrimPrefix(before, "/"), strings.TrimPrefix(after, "/")
		}
		b = p.change(fmt.Appendf(b, "    %s\n", d.place(d.Path)), before, after)
	}
	if len(diffs) == 0 {
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

// place says where a difference is: in what, and from or to which backend.
func (d Difference) place(what string) string {
	backend := Sanitize(d.Backend)
	switch d.Way {
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

func (p *Printer) change(b []byte, before, after string) []byte {
	if before != "" {
		b = fmt.Appendf(b, "        %s\n", p.colour(red, "- "+before))
	}
	if after != "" {
		b = fmt.Appendf(b, "        %s\n", p.colour(green, "+ "+after))
	}
	return b
}
