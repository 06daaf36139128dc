package calls

import (
	"bytes"
	"maps"
	"slices"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// What says what there is to show of a call after an event.
type What int

const (
	Nothing  What = iota // nothing to show yet
	Streamed             // a message towards the client, on a streaming call
	Done                 // the call has ended
	Changed              // a change of a condition, which the event has; it belongs to no call
)

// An Assembler assembles calls from their events. Only one goroutine at a time may use it.
type Assembler struct {
	schema *codec.Schema
	names  Namer
	calls  map[uint64]*Call
	missed uint64

	// KeepBytes bounds how many bytes of messages each leg keeps in each direction. Zero means the
	// first 1000 messages, whole; negative means none.
	KeepBytes int
	// Copy makes the Assembler copy the messages that it keeps. Set it for events of a follower,
	// whose payloads are parts of large chunks of memory.
	Copy bool
	// Lists makes the Assembler fill in Call.Listed.
	Lists bool
}

// NewAssembler returns an assembler. With nil names, calls have no About.
func NewAssembler(schema *codec.Schema, names Namer) *Assembler {
	return &Assembler{schema: schema, names: names, calls: map[uint64]*Call{}}
}

const (
	maxCalls = 20_000 // calls under way; if there are more, events with their ends were missed
	maxKept  = 1000   // messages of a leg in one direction
)

// Missed returns how many events have been missed so far.
func (a *Assembler) Missed() uint64 { return a.missed }

// Schema returns the schema of the API.
func (a *Assembler) Schema() *codec.Schema { return a.schema }

// UnderWay returns the calls that have not ended, by the time they began.
func (a *Assembler) UnderWay() []*Call {
	return slices.SortedFunc(maps.Values(a.calls), func(x, y *Call) int { return x.Began.Compare(y.Began) })
}

// Add adds an event. It returns the event's call and what there is to show of it. The call is nil if
// that is Nothing or Changed.
func (a *Assembler) Add(ev *capture.Event) (*Call, What) {
	if ev.Kind == capture.Missed {
		a.missed += ev.Missed
		return nil, Nothing
	}
	if ev.Kind == capture.Changed {
		return nil, Changed
	}
	c := a.calls[ev.Call]
	if ev.Kind == capture.Start && ev.Leg == 0 && !ev.Again {
		c = nil // a call of another recording, joined to one that ended in the middle of a call
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

// request learns from a request what its call is about.
func (a *Assembler) request(c *Call, ev *capture.Event) {
	if about, _ := a.describe(ev); a.names != nil {
		c.About.add(about)
		c.About = a.names.Complete(c.About)
	}
}

// reply learns more about the call from a reply.
func (a *Assembler) reply(c *Call, ev *capture.Event) (*Call, What) {
	m := a.schema.Method(ev.Method)
	c.stream = c.stream || m != nil && m.ServerStreams || c.Front().Replies.Count > 1
	about, items := a.describe(ev)
	if a.names != nil {
		for _, item := range items {
			a.names.Learn(item)
			if item.Running && item.Pod == "" { // only kubelet labels containers with their pods
				item = a.names.Complete(item)
			}
			if a.Lists && (!c.stream || len(about.IDs) == 0) { // a message of a stream is an event, or a part of a list
				c.Listed = append(c.Listed, item)
			}
		}
		switch {
		case c.stream: // each message is about another thing
			about = a.names.Complete(about)
			about.Items = len(items)
			part := *c
			part.About = about
			return &part, Streamed
		case len(items) > 0:
			c.About.Items = len(items)
		default:
			ids := about.IDs
			about.add(c.About) // if the reply has only an id, the request describes its object
			if len(ids) > 0 {
				a.names.Learn(about)
			}
			c.About.add(about)
			if len(ids) > 0 && m != nil { // the id of a new object goes first
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
