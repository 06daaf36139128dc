package inspect

import (
	"bytes"
	"maps"
	"slices"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/capture"
)

// What an event means for its call.
type What int

const (
	Nothing  What = iota // nothing to show yet
	Streamed             // a message towards the client, of a call that has many
	Done                 // the call has ended
)

// An Assembler puts the events of calls together. It must not be used by two
// goroutines at once.
type Assembler struct {
	schema *codec.Schema
	names  Namer
	calls  map[uint64]*Call
	missed uint64

	// KeepBytes bounds what is kept of the messages of one leg in one direction.
	// Zero means that all of each message is kept, of the first 1000; negative that
	// nothing is.
	KeepBytes int
	// Copy copies the messages that are kept: those of a follower are parts of large
	// pieces of memory.
	Copy bool
}

// NewAssembler returns an assembler. With nil names, calls have no About.
func NewAssembler(schema *codec.Schema, names Namer) *Assembler {
	return &Assembler{schema: schema, names: names, calls: map[uint64]*Call{}}
}

const (
	maxCalls = 20_000 // under way; if there are more, their ends were missed
	maxKept  = 1000   // messages of a leg
)

// Missed returns how many events were missed so far.
func (a *Assembler) Missed() uint64 { return a.missed }

// UnderWay returns the calls that have not ended.
func (a *Assembler) UnderWay() []*Call {
	return slices.Collect(maps.Values(a.calls))
}

// Add adds an event. It returns the call that the event belongs to, and what there is to show of it.
func (a *Assembler) Add(ev *capture.Event) (*Call, What) {
	if ev.Kind == capture.Missed {
		a.missed += ev.Missed
		return nil, Nothing
	}
	c := a.calls[ev.Call]
	if ev.Kind == capture.Start && ev.Leg == 0 && !ev.Again {
		c = nil // or it is of another recording, joined to one that ended in the middle of a call
	}
	if c == nil {
		if len(a.calls) >= maxCalls {
			clear(a.calls)
		}
		c = &Call{names: a.names, ID: ev.Call, Method: ev.Method, Own: ev.Own, Began: ev.Time, mono: ev.Mono, Partial: ev.Kind != capture.Start || ev.Leg != 0 && !ev.Own}
		if c.Partial && (ev.Kind == capture.End || ev.Leg != 0 && !ev.Own) {
			return nil, Nothing // the rest of a call that has ended for its client
		}
		a.calls[ev.Call] = c
	}
	l := c.leg(ev)
	front := ev.Leg == 0 || c.Own
	l.Took = ev.Mono - l.mono
	if front {
		c.Took = ev.Mono - c.mono
	}
	switch ev.Kind {
	case capture.Start:
		l.Metadata, l.Timeout = ev.Metadata, ev.Timeout
		if ev.Leg == 0 {
			c.Peer = ev.Peer
		}
	case capture.Request:
		l.Requests.add(ev, a)
		if front {
			a.request(c, ev)
		}
	case capture.Header:
		l.Header = ev.Metadata
	case capture.Reply:
		l.Replies.add(ev, a)
		if front {
			return a.reply(c, ev)
		}
	case capture.End:
		l.Ended, l.Code, l.Message, l.Trailer = true, ev.Code, ev.Message, ev.Metadata
		if front {
			c.Ended, c.Code, c.Message = true, ev.Code, ev.Message
			delete(a.calls, ev.Call)
			return c, Done
		}
	}
	return nil, Nothing
}

func (m *Messages) add(ev *capture.Event, a *Assembler) {
	m.Count++
	kept := Message{Payload: ev.Payload, Size: ev.Size, Truncated: ev.Truncated, Redacted: ev.Redacted, Time: ev.Time, Mono: ev.Mono}
	before := m.Bytes
	m.Bytes += ev.Size
	if room := a.KeepBytes - before; a.KeepBytes != 0 && len(kept.Payload) > max(room, 0) {
		kept.Payload, kept.Truncated = kept.Payload[:max(room, 0)], true
	}
	if a.Copy {
		kept.Payload = bytes.Clone(kept.Payload)
	}
	if m.Last = kept; len(m.Kept) < maxKept && (a.KeepBytes == 0 || len(kept.Payload) > 0 || ev.Size == 0) {
		m.Kept = append(m.Kept, kept)
	}
}

// request notes what a call is about, as its request says.
func (a *Assembler) request(c *Call, ev *capture.Event) {
	if about, _ := a.describe(ev); a.names != nil {
		c.About.add(about)
		c.About = a.names.Complete(c.About)
	}
}

// reply notes what the reply says beyond that.
func (a *Assembler) reply(c *Call, ev *capture.Event) (*Call, What) {
	m := a.schema.Method(ev.Method)
	c.stream = c.stream || m != nil && m.ServerStreams || c.Front().Replies.Count > 1
	about, items := a.describe(ev)
	if a.names != nil {
		for _, item := range items {
			a.names.Learn(item)
		}
		switch {
		case c.stream: // each message is about something else
			about = a.names.Complete(about)
			about.Items = len(items)
			part := *c
			part.About = about
			return &part, Streamed
		case len(items) > 0:
			c.About.Items = len(items)
		default:
			ids := about.IDs
			about.add(c.About) // a reply with nothing but an id: that of what the request describes
			if len(ids) > 0 {
				a.names.Learn(about)
			}
			c.About.add(about)
			if len(ids) > 0 && m != nil { // what was made goes first
				c.About.IDs = nil
				c.About.add(about)
			}
		}
	}
	if c.stream {
		return c, Streamed
	}
	return nil, Nothing
}

func (a *Assembler) describe(ev *capture.Event) (About, []About) {
	md := capture.MessageOf(a.schema, ev.Method, ev.Kind)
	if md == nil || a.names == nil {
		return About{}, nil
	}
	return a.names.Message(md, ev.Payload)
}
