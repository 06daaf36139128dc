package page

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/criproxy/criproxy/internal/base/dump"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// Limits on the details of one call in the page. `criproxy view -full` prints everything.
const (
	maxValue    = 2000 // bytes of a string
	maxLines    = 400  // lines of a message
	maxMessages = 25   // messages of a leg in one direction
	maxChanges  = 400
)

// detail has the details of a call. page/detail.js reads these keys.
type detail struct {
	Legs    []legDetail     `json:"legs"`
	Changes json.RawMessage `json:"changes,omitempty"` // [calls.Difference]s
	More    int             `json:"more,omitempty"`    // changes that are left out
	Gaps    []calls.Gap     `json:"gaps,omitempty"`
}

type legDetail struct {
	Backend  string          `json:"backend,omitempty"` // empty on the client's leg
	Process  string          `json:"process,omitempty"`
	Method   string          `json:"method"`
	Deadline float64         `json:"deadline,omitempty"` // in milliseconds
	Began    float64         `json:"began"`              // after the call began
	Took     float64         `json:"took"`
	Code     string          `json:"code,omitempty"` // once it has ended
	Status   string          `json:"status,omitempty"`
	Failed   bool            `json:"failed,omitempty"`
	Metadata [][2]string     `json:"metadata,omitempty"`
	Header   [][2]string     `json:"header,omitempty"`
	Trailer  [][2]string     `json:"trailer,omitempty"`
	Requests []messageDetail `json:"requests,omitempty"`
	Replies  []messageDetail `json:"replies,omitempty"`
	MoreIn   int             `json:"more_requests,omitempty"`
	MoreOut  int             `json:"more_replies,omitempty"`
}

type messageDetail struct {
	Type     string          `json:"type"`
	Size     int             `json:"size"`
	Kept     int             `json:"kept,omitempty"`
	Redacted bool            `json:"redacted,omitempty"`
	Lines    json.RawMessage `json:"lines,omitempty"` // each a line
	More     int             `json:"more,omitempty"`  // lines that are left out
}

// A line is an array: the depth of a field, its name, its value (none for a message), and 1 if it was rewritten.
type line []any

// Render returns the details of a call, as JSON, and its row, without a key. The printer prints nothing: Render takes
// the schema, the secrets and the order of backends from it.
func Render(p *calls.Printer, c *calls.Call) (json.RawMessage, Row) {
	return render(*p, c, func(part json.RawMessage) json.RawMessage { return part })
}

// render does the work of Render. It replaces parts of the details with what share returns for them, since many calls
// have such parts in common: kubelet's lists of every second are mostly the same.
func render(p calls.Printer, c *calls.Call, share func(json.RawMessage) json.RawMessage) (json.RawMessage, Row) {
	p.Text.MaxValue = maxValue
	p.Text.Unsafe = false // even if the recording has secrets: people mail pages to others
	var d detail
	opened := opening{p: &p, call: c, marks: marks{}, share: share}
	changes, gaps := p.Diff(c)
	row := Row{Call: c, Changes: len(changes)}
	d.Gaps = gaps
	for _, ch := range changes {
		opened.marks.add(ch)
	}
	if more := len(changes) - maxChanges; more > 0 {
		changes, d.More = changes[:maxChanges], more
	}
	if len(changes) > 0 {
		d.Changes = share(marshal(changes))
	}
	for _, l := range c.Legs {
		d.Legs = append(d.Legs, opened.leg(l))
	}
	return marshal(d), row
}

// marshal encodes strings and numbers, for which encoding cannot fail.
func marshal(v any) json.RawMessage {
	out, err := json.Marshal(v)
	if err != nil {
		return json.RawMessage("null")
	}
	return out
}

// An opening is the state of rendering one call.
type opening struct {
	p     *calls.Printer
	call  *calls.Call
	marks marks
	share func(json.RawMessage) json.RawMessage
}

func (o *opening) leg(l *calls.Leg) legDetail {
	c := o.call
	d := legDetail{
		Method: l.Method, Deadline: milliseconds(l.Timeout), Began: milliseconds(max(l.Began.Sub(c.Began), 0)), Took: milliseconds(l.Took),
		Metadata: pairs(l.Metadata), Header: pairs(l.Header), Trailer: pairs(l.Trailer),
	}
	switch {
	case l.Number != 0:
		d.Backend = l.Backend
	case c.Peer.PID != 0:
		d.Process = fmt.Sprintf("%s, process %d, user %d", c.From(), c.Peer.PID, c.Peer.UID)
	default:
		d.Process = c.From()
	}
	if l.Ended {
		d.Code, d.Status, d.Failed = l.Code.String(), l.Message, l.Failed()
	}
	d.Requests, d.MoreIn = o.messages(capture.Request, l, l.Requests)
	d.Replies, d.MoreOut = o.messages(capture.Reply, l, l.Replies)
	return d
}

func (o *opening) messages(kind capture.Kind, l *calls.Leg, ms calls.Messages) (all []messageDetail, more int) {
	c, p := o.call, o.p
	md := capture.MessageOf(p.Schema, l.Method, kind)
	if md == nil && calls.ShortMethod(l.Method) == calls.ShortMethod(c.Method) {
		md = capture.MessageOf(p.Schema, c.Method, kind) // the method is described in another version only
	}
	for _, m := range ms.Kept[:min(len(ms.Kept), maxMessages)] {
		d := messageDetail{Type: "not described", Size: m.Size, Redacted: m.Redacted}
		if md != nil {
			d.Type = string(md.Name())
		}
		if m.Truncated {
			d.Kept = len(m.Payload)
		}
		w := lineWriter{marks: o.marks, way: kind.String()}
		w.add(inOrder(p.Text.Tree(md, m.Payload)), 0, false)
		if d.More = w.more; len(w.lines) > 0 {
			d.Lines = o.share(marshal(w.lines))
		}
		all = append(all, d)
	}
	return all, ms.Count - len(all)
}

// marks are the rewritten values. The page marks the lines that have them, on each leg.
type marks map[string]bool

func (m marks) add(ch calls.Difference) {
	if ch.Path == "" {
		return // the name of the method, or the status
	}
	way := ch.Way
	name := ch.Path[strings.LastIndexByte(ch.Path, '.')+1:]
	if i := strings.IndexByte(name, '['); i >= 0 {
		name = name[:i]
	}
	for _, value := range []string{ch.Before, ch.After} {
		if value != "" {
			m[way+" "+name+" "+value] = true
			m[way+" "+name] = m[way+" "+name] || value[0] == '{'
		}
	}
}

func (m marks) has(way string, n *dump.Node) bool {
	return (!n.IsMsg || m[way+" "+n.Name]) && m[way+" "+n.Name+" "+n.String()]
}

// inOrder sorts the entries of maps, which come in another order each time. So people find a key, and equal lists have
// equal lines.
func inOrder(nodes []*dump.Node) []*dump.Node {
	for i := 0; i < len(nodes); {
		end := i + 1
		for nodes[i].Key != "" && end < len(nodes) && nodes[end].Key != "" && nodes[end].Name == nodes[i].Name {
			end++
		}
		slices.SortStableFunc(nodes[i:end], func(a, b *dump.Node) int { return strings.Compare(a.Key, b.Key) })
		i = end
	}
	for _, n := range nodes {
		inOrder(n.Nodes)
	}
	return nodes
}

// A lineWriter makes lines of a message.
type lineWriter struct {
	marks marks
	way   string
	lines []line
	more  int
}

func (w *lineWriter) add(nodes []*dump.Node, depth int, marked bool) {
	for _, n := range nodes {
		name := n.Name
		if n.Key != "" {
			name += "[" + n.Key + "]"
		}
		marked := marked || w.marks.has(w.way, n)
		l := line{depth, name}
		switch {
		case !n.IsMsg && marked:
			l = append(l, n.Text, 1)
		case !n.IsMsg:
			l = append(l, n.Text)
		case marked:
			l = append(l, nil, 1)
		}
		if len(w.lines) < maxLines {
			w.lines = append(w.lines, l)
		} else {
			w.more++
		}
		w.add(n.Nodes, depth+1, marked)
	}
}

// pairs returns metadata without credentials, which recordings of other programs may contain.
func pairs(md map[string][]string) [][2]string {
	all := calls.Pairs(md)
	for i, p := range all {
		switch key, v := p[0], p[1]; {
		case capture.SecretKey(key):
			all[i][1] = dump.Redacted
		case len(v) > maxValue && !strings.HasSuffix(key, "-bin"):
			all[i][1] = fmt.Sprintf("%s… (%d bytes)", strings.ToValidUTF8(v[:maxValue], ""), len(v))
		}
	}
	return all
}
