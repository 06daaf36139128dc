package calls

import (
	"encoding/json"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/internal/base/dump"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// Printed is a call as tail and view print it with -o json. Its format is stable, and documented in
// docs/capture.md.
type Printed struct {
	Call      uint64            `json:"call"`
	Time      time.Time         `json:"time"`
	Client    *capture.Peer     `json:"client,omitempty"`
	Own       bool              `json:"own,omitempty"`
	Method    string            `json:"method"`
	Backends  []string          `json:"backends,omitempty"`
	About     About             `json:"about"`
	Took      time.Duration     `json:"took_ns"`
	Message   int               `json:"message,omitempty"` // on a streaming call: the message's number
	Code      string            `json:"code,omitempty"`
	Status    string            `json:"status,omitempty"`
	FromCache []string          `json:"remembered,omitempty"` // backends for which a cache answered
	In        int               `json:"request_bytes"`
	Out       int               `json:"reply_bytes"`
	Requests  []json.RawMessage `json:"requests,omitempty"`
	Replies   []json.RawMessage `json:"replies,omitempty"`
	Changes   []Difference      `json:"changes,omitempty"`
	Gaps      []Gap             `json:"not_compared,omitempty"`
}

// changeJSON is a change between calls.
type changeJSON struct {
	Change *capture.Change `json:"change"`
}

func (p *Printer) json(v any) {
	b, err := json.Marshal(v)
	if err != nil { // cannot happen: v holds strings, numbers, and valid JSON
		if p.err == nil {
			p.err = err
		}
		return
	}
	if p.Node != "" {
		name, _ := json.Marshal(p.Node) // a string
		b = append(append(append([]byte(`{"node":`), name...), ','), b[1:]...)
	}
	p.write(append(b, '\n'))
}

func (p *Printer) asJSON(c *Call, full bool) Printed {
	l := c.Front()
	j := Printed{
		Call: c.ID, Time: c.Began.UTC(), Own: c.Own, Method: c.Method, Backends: c.Backends(), FromCache: c.FromCache(), About: c.About, Took: c.Took,
		Status: c.Message, In: l.Requests.Bytes, Out: l.Replies.Bytes,
	}
	if c.Ended {
		j.Code = c.Code.String()
	}
	if c.Peer.PID != 0 {
		j.Client = &c.Peer
	}
	if full {
		j.Requests = p.decoded(capture.MessageOf(p.Schema, l.Method, capture.Request), l.Requests.Kept)
		j.Replies = p.decoded(capture.MessageOf(p.Schema, l.Method, capture.Reply), l.Replies.Kept)
	}
	return j
}

func (p *Printer) decoded(md protoreflect.MessageDescriptor, ms []Message) []json.RawMessage {
	var all []json.RawMessage
	for _, m := range ms {
		all = append(all, dump.AppendJSON(nil, md, m.Payload))
	}
	return all
}
