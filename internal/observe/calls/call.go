package calls

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// A Call is one call with all of its legs, as far as they were recorded.
type Call struct {
	ID      uint64
	Method  string
	Peer    capture.Peer // the client; zero if unknown
	Own     bool         // criproxy made the call itself
	Began   time.Time
	Took    time.Duration // until its end or, while it is under way, until its latest event
	Ended   bool
	Code    codes.Code // once it has ended
	Message string
	About   About
	Legs    []*Leg  // the client's first, if there is one
	Partial bool    // its beginning was not recorded
	Listed  []About // what its reply lists, if the Assembler keeps that

	names  Namer // may be nil
	stream bool
	mono   time.Duration // when it began
}

// A Leg is one leg of a call.
type Leg struct {
	Number   int
	Backend  string // empty for the client's
	Method   string
	Metadata metadata.MD // of the request
	Timeout  time.Duration
	Header   metadata.MD
	Trailer  metadata.MD
	Began    time.Time
	Took     time.Duration
	Ended    bool
	Code     codes.Code
	Message  string
	Requests Messages
	Replies  Messages

	mono time.Duration
}

// Messages are the messages of a leg in one direction.
type Messages struct {
	Kept  []Message // the first ones
	Last  Message
	Count int // of all messages
	Bytes int // of all messages
}

// A Message is one recorded message, without secrets.
type Message struct {
	Payload   []byte
	Size      int // of the whole message, in bytes
	Truncated bool
	Redacted  bool
	Time      time.Time
	Mono      time.Duration
}

// FromCache returns the backends for which a cache answered.
func (c *Call) FromCache() []string {
	var names []string
	for _, l := range c.Legs {
		if l.Number == 0 {
			names = append(names, l.Header[backend.HeaderKey]...)
		}
	}
	return names
}

// Failed reports whether a call has ended with an error. A call that its client ended has not
// failed.
func (c *Call) Failed() bool { return failed(c.Code, c.Message) }

// Failed reports whether a leg has ended with an error, as [Call.Failed] does.
func (l *Leg) Failed() bool { return failed(l.Code, l.Message) }

func failed(code codes.Code, message string) bool {
	return code != codes.OK && !capture.EndedByClient(code, message)
}

// Client returns the client's leg, or nil if there is none.
func (c *Call) Client() *Leg {
	if len(c.Legs) > 0 && c.Legs[0].Number == 0 {
		return c.Legs[0]
	}
	return nil
}

// Front returns the leg that represents the call: the client's, or else the first.
func (c *Call) Front() *Leg {
	if len(c.Legs) == 0 {
		return &Leg{Method: c.Method}
	}
	return c.Legs[0]
}

// Backends returns the names of the backends that were called, each once: the primary first, and then by name. The legs
// of a merged list begin in any order, which would say nothing.
func (c *Call) Backends() []string {
	var names []string
	for _, l := range c.Legs {
		if l.Number != 0 {
			names = append(names, l.Backend)
		}
	}
	return inOrder(names)
}

// Meant returns the names of the backends that the call was meant for, in the order of Backends: those that were called,
// those for which a cache answered, and if there are none, the one that refused the call, by criproxy's error.
func (c *Call) Meant() []string {
	names := append(c.Backends(), c.FromCache()...)
	if name := backend.NameIn(c.Message); name != "" && len(names) == 0 {
		names = append(names, name)
	}
	return inOrder(names)
}

func inOrder(names []string) []string {
	slices.SortFunc(names, func(a, b string) int {
		first := func(name string) int { return map[bool]int{true: -1}[name == "primary"] }
		return cmp.Or(first(a)-first(b), cmp.Compare(a, b))
	})
	return slices.Compact(names)
}

// HomeOf returns the backend that an item of Listed is on, or "" if the recording does not show it.
func (c *Call) HomeOf(item About) string {
	if meant := c.Meant(); len(meant) == 1 {
		return meant[0]
	}
	whole, found := true, ""
	for _, id := range item.IDs[:min(len(item.IDs), 1)] {
		bare := c.Bare(id)
		prefix := strings.TrimSuffix(id, bare)
		for _, l := range c.Legs {
			for _, m := range l.Replies.Kept {
				whole = whole && !m.Truncated
				switch { // several runtimes may have the same id
				case l.Number == 0 || !bytes.Contains(m.Payload, []byte(bare)):
				case prefix == "" && (found == "" || l.Backend == "primary"),
					strings.HasPrefix(prefix, l.Backend) && len(l.Backend) > len(found):
					found = l.Backend
				}
			}
		}
	}
	if found != "" {
		return found
	}
	if names := c.FromCache(); whole && len(names) == 1 {
		return names[0] // what no backend listed comes from a cache
	}
	return ""
}

// Bare returns an id without the prefix of its backend.
func (c *Call) Bare(id string) string {
	if c.names == nil {
		return id
	}
	return cmp.Or(c.names.Bare(id), id)
}

// From returns the name of the process that made the call: "-" if that was not recorded.
func (c *Call) From() string {
	switch {
	case c.Own:
		return "criproxy"
	case c.Partial && c.Peer == capture.Peer{}:
		return "-"
	case c.Peer.PID == 0:
		return "client"
	}
	return c.Peer.Name
}

// ShortMethod returns the name of a method without its service.
func ShortMethod(method string) string { return method[strings.LastIndexByte(method, '/')+1:] }

func (c *Call) leg(ev *capture.Event) *Leg {
	for _, l := range c.Legs {
		if l.Number == ev.Leg {
			return l
		}
	}
	l := &Leg{Number: ev.Leg, Backend: ev.Backend, Method: ev.Method, Began: ev.Time, mono: ev.Mono}
	if l.Number == 0 {
		c.Legs = append([]*Leg{l}, c.Legs...)
	} else {
		c.Legs = append(c.Legs, l)
	}
	return l
}
