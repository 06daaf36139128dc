package calls

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/dump"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// A Printer prints calls: each on a line, with what Full and Changes add below it.
type Printer struct {
	Out     io.Writer
	Schema  *codec.Schema
	Text    dump.Text // how to show values
	Colour  bool
	Date    bool          // print the day as well
	Full    bool          // print the messages, on each leg
	Changes bool          // print what the proxy changed in calls that have ended
	Order   []string      // backends in the order in which their replies are merged
	Node    string        // where the calls are from, for a column of its own; empty for none
	Wide    int           // the width of that column
	Off     time.Duration // how far the node's clock is ahead: people see times by this machine's clock
	JSON    bool          // print a line of JSON for each call, for programs

	err error
}

// Err returns why something could not be printed.
func (p *Printer) Err() error { return p.err }

func (p *Printer) write(b []byte) {
	if _, err := p.Out.Write(b); err != nil && p.err == nil {
		p.err = err
	}
}

// Widths of columns, in characters. Longer text moves the rest of the line to the right.
const (
	clientWidth = 12
	methodWidth = 20
	aboutWidth  = 42
)

// backendWidth returns the width of the column of backends, which has room for all that a list asks: there, they are
// those of the node. Several nodes may have different ones, and have one table.
func (p *Printer) backendWidth() int {
	all := 0
	if p.Wide == 0 {
		all = utf8.RuneCountInString(strings.Join(p.Order, ","))
	}
	return min(max(all, 16), 32)
}

// Header prints the titles of the columns.
func (p *Printer) Header() {
	titles := *p
	if p.Wide > 0 {
		titles.Node = "NODE"
	}
	when := titles.clock(time.Time{})
	p.write(p.columns(nil, cell("TIME", len(when)-len(titles.column()))+titles.column(), "CLIENT", "METHOD", "BACKEND", "ABOUT", "    TOOK", "STATUS"))
}

// LateHeader prints the titles of the columns before the first line, if there is one.
func (p *Printer) LateHeader() {
	titles := *p
	p.Out = &headed{Out: p.Out, header: titles.Header}
}

// headed is a writer that calls header before it writes anything.
type headed struct {
	Out    io.Writer
	header func() // nil once it was called
}

func (h *headed) Write(b []byte) (int, error) {
	if h.header != nil && len(b) > 0 {
		h.header() // the next line meets its error, too
		h.header = nil
	}
	return h.Out.Write(b)
}

func (p *Printer) columns(b []byte, when, client, method, backend, about, took, status string) []byte {
	b = fmt.Appendf(b, "%s  %s %s %s %s %s  %s", when, cell(client, clientWidth), cell(method, methodWidth), cell(backend, p.backendWidth()), cell(about, aboutWidth), took, status)
	return append([]byte(strings.TrimRight(string(b), " ")), '\n')
}

// cell pads s with spaces.
func cell(s string, width int) string { return fmt.Sprintf("%-*s", width, s) }

func (p *Printer) clock(t time.Time) string {
	layout := "15:04:05.000"
	if p.Date {
		layout = "2006-01-02 " + layout
	}
	return t.Add(-p.Off).Local().Format(layout) + p.column()
}

// column returns the column of the node, which follows the time.
func (p *Printer) column() string {
	if p.Node == "" {
		return ""
	}
	return "  " + cell(Sanitize(p.Node), p.Wide)
}

// took formats a duration in 8 characters, with about three significant digits.
func took(d time.Duration) string {
	switch {
	case d < time.Microsecond:
		return fmt.Sprintf("%6dns", d.Nanoseconds())
	case d < time.Millisecond:
		return fmt.Sprintf("%6.0fµs", float64(d)/float64(time.Microsecond))
	case d < 100*time.Millisecond:
		return fmt.Sprintf("%6.1fms", float64(d)/float64(time.Millisecond))
	case d < time.Second:
		return fmt.Sprintf("%6.0fms", float64(d)/float64(time.Millisecond))
	case d < 100*time.Second:
		return fmt.Sprintf("%7.2fs", d.Seconds())
	}
	return fmt.Sprintf("%8s", d.Round(time.Second))
}

// Rounded returns a duration in a sentence or a table.
func Rounded(d time.Duration) string {
	if d < time.Second {
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(time.Millisecond).String()
}

const (
	bold   = "\x1b[1m"
	dim    = "\x1b[2m"
	red    = "\x1b[31m"
	green  = "\x1b[32m"
	plain  = "\x1b[0m"
	maxMsg = 120 // characters of a status message on a line
)

func (p *Printer) colour(code, s string) string {
	if !p.Colour || s == "" {
		return s
	}
	return code + s + plain
}

// Print prints a call.
func (p *Printer) Print(c *Call) {
	changes := p.Changes && c.Ended
	if p.JSON {
		j := p.asJSON(c, p.Full)
		if changes {
			j.Changes, j.Gaps = p.Diff(c)
		}
		p.json(j)
		return
	}
	p.line(c, "")
	if p.Full {
		p.legs(c)
	}
	if changes {
		p.changes(c)
	}
}

// Change prints a change of a condition, between the calls.
func (p *Printer) Change(c *capture.Change) { p.printChange("-- ", c, changeJSON{c}) }

// Now prints a condition that is true now, between calls that are older.
func (p *Printer) Now(c *capture.Change) { p.printChange("-- now: ", c, changeJSON{c}) }

// Event prints a change on a line of its own, where there are no calls.
func (p *Printer) Event(c *capture.Change) { p.printChange("", c, c) }

func (p *Printer) printChange(mark string, c *capture.Change, forPrograms any) {
	if p.JSON {
		p.json(forPrograms)
		return
	}
	p.write([]byte(p.clock(c.Time) + "  " + p.changeColour(c, mark+Sanitize(c.String())) + "\n"))
}

func (p *Printer) changeColour(c *capture.Change, s string) string {
	colour := bold
	switch c.What {
	case capture.Gone, capture.Slow, capture.PluginDown, capture.Refused:
		colour = red
	case capture.Up, capture.PluginReady:
		colour = green
	}
	return p.colour(colour, s)
}

// Streamed prints the latest message of a streaming call. It prints no changes: Print compares the
// whole call when it has ended.
func (p *Printer) Streamed(c *Call) {
	l := c.Front()
	md := capture.MessageOf(p.Schema, l.Method, capture.Reply)
	switch {
	case p.Changes && !p.Full:
	case p.JSON:
		j := p.asJSON(c, false)
		j.Message, j.Time = l.Replies.Count, l.Replies.Last.Time
		if p.Full {
			j.Replies = p.decoded(md, []Message{l.Replies.Last})
		}
		p.json(j)
	default:
		p.line(c, fmt.Sprintf("message %d", l.Replies.Count))
		if p.Full {
			p.write(p.message(nil, "<", md, l.Replies.Last))
		}
	}
}

func (p *Printer) line(c *Call, streamed string) {
	about := Sanitize(c.About.String())
	if c.About.Items > 0 && streamed == "" {
		about = strings.TrimSpace(about + " " + capture.Count(c.About.Items, "item"))
	}
	status := p.status(c.Code, c.Message)
	switch {
	case streamed != "":
		status = p.colour(dim, streamed)
	case !c.Ended:
		status = p.colour(dim, "under way")
	}
	if names := c.FromCache(); len(names) > 0 {
		status += p.colour(dim, ", "+Sanitize(strings.Join(names, ", "))+" from the cache")
	}
	if c.Partial {
		status += p.colour(dim, ", its beginning was not recorded")
	}
	if n := c.Front().Replies.Count; c.stream && streamed == "" {
		status += " after " + capture.Count(n, "message")
	}
	backends := cmp.Or(Sanitize(strings.Join(c.Backends(), ",")), Sanitize(strings.Join(c.Meant(), ",")), "-")
	when := c.Began
	if streamed != "" {
		when = c.Front().Replies.Last.Time
	}
	method := p.colour(bold, cell(Sanitize(ShortMethod(c.Method)), methodWidth))
	p.write(p.columns(nil, p.clock(when), Sanitize(c.From()), method, backends, about, took(c.Took), status))
}

func (p *Printer) status(code codes.Code, message string) string {
	return p.wholeStatus(code, Cut(message, maxMsg))
}

// wholeStatus formats a status without cutting its message.
func (p *Printer) wholeStatus(code codes.Code, message string) string {
	if code == codes.OK {
		return p.colour(green, "OK")
	}
	s := code.String()
	if message != "" {
		s += ": " + Sanitize(message)
	}
	if !failed(code, message) {
		return p.colour(dim, s)
	}
	return p.colour(red, s)
}

// legs prints a call leg by leg, with all its messages.
func (p *Printer) legs(c *Call) {
	var b []byte
	for _, l := range c.Legs {
		b = p.leg(b, c, l)
	}
	p.write(append(b, '\n'))
}

func (p *Printer) leg(b []byte, c *Call, l *Leg) []byte {
	name := "client " + Sanitize(c.From())
	if l.Number == 0 && c.Peer.PID != 0 {
		name += fmt.Sprintf(" (process %d, user %d)", c.Peer.PID, c.Peer.UID)
	} else if l.Number != 0 {
		name = "backend " + Sanitize(l.Backend)
	}
	b = fmt.Appendf(b, "  %s  %s\n", p.colour(bold, name), Sanitize(strings.TrimPrefix(l.Method, "/")))
	if l.Timeout > 0 {
		b = fmt.Appendf(b, "    deadline in %s\n", l.Timeout.Round(time.Millisecond))
	}
	b = appendMetadata(b, ">", l.Metadata)
	b = p.messages(b, ">", capture.MessageOf(p.Schema, l.Method, capture.Request), l.Requests)
	b = appendMetadata(b, "<", l.Header)
	b = p.messages(b, "<", capture.MessageOf(p.Schema, l.Method, capture.Reply), l.Replies)
	b = appendMetadata(b, "<", l.Trailer)
	if !l.Ended {
		return append(b, "    under way\n"...)
	}
	return fmt.Appendf(b, "    %s after %s\n", p.wholeStatus(l.Code, l.Message), strings.TrimSpace(took(l.Took)))
}

func (p *Printer) messages(b []byte, way string, md protoreflect.MessageDescriptor, ms Messages) []byte {
	for _, m := range ms.Kept {
		b = p.message(b, way, md, m)
	}
	if more := ms.Count - len(ms.Kept); more > 0 {
		b = fmt.Appendf(b, "    %s and %s\n", way, capture.Count(more, "more message"))
	}
	return b
}

func (p *Printer) message(b []byte, way string, md protoreflect.MessageDescriptor, m Message) []byte {
	b = fmt.Appendf(b, "    %s %s, %d bytes", way, typeName(md), m.Size)
	if m.Redacted {
		b = append(b, ", without secrets"...)
	}
	if m.Truncated {
		b = fmt.Appendf(b, ", %d kept", len(m.Payload))
	}
	b = append(b, '\n')
	return dump.Lines(b, p.Text.Tree(md, m.Payload), "        ")
}

func typeName(md protoreflect.MessageDescriptor) string {
	if md == nil {
		return "a message that no schema describes"
	}
	return string(md.Name())
}
