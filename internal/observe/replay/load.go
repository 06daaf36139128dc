package replay

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/criproxy/criproxy/internal/observe/capture"
)

// A Call is one leg of a recorded call.
type Call struct {
	ID       uint64
	Method   string
	Began    time.Duration // since the recording began
	Finished time.Duration // since the recording began; only if Ended
	Ended    bool
	Partial  bool          // it began before the recording; the missing part is unknown
	Timeout  time.Duration // set by the client; zero means none
	Code     codes.Code
	Message  string
	Details  []byte // serialized google.rpc.Status, if there are any
	Metadata metadata.MD
	Header   metadata.MD
	Trailer  metadata.MD
	Requests []Message
	Replies  []Message
	Redacted bool // secrets of a request were overwritten

	latest time.Duration // time of its latest event
}

// A Message is one message of a recorded call.
type Message struct {
	Payload   []byte
	When      time.Duration
	Truncated bool
}

// ErrNoBackend is why a recording cannot be played as one of its backends.
var ErrNoBackend = errors.New("the recording has no calls to a backend")

// Load reads the legs of clients or, if backend is not empty, those of that backend, in the order in which they began.
// If several recordings were joined, each begins when the one before it has ended. If a file ends in the middle of an
// event, Load reads up to there.
func Load(r *capture.Reader, backend string) ([]*Call, error) {
	type leg struct {
		call uint64
		leg  int
	}
	calls := map[leg]*Call{}
	var order []*Call
	var latest, shift time.Duration
	for {
		var ev capture.Event
		err := r.Next(&ev)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if ev.Kind == capture.Missed || ev.Kind == capture.Changed || (backend == "") != (ev.Leg == 0) || ev.Backend != backend {
			continue
		}
		id := leg{ev.Call, ev.Leg}
		c := calls[id]
		if c != nil && ev.Kind == capture.Start && !ev.Again { // another recording, after the first, counts from 1 as well
			clear(calls)
			c, shift = nil, latest
		}
		ev.Mono += shift
		latest = max(latest, ev.Mono)
		if c == nil {
			if ev.Kind != capture.Start {
				continue // its beginning is not in the file
			}
			c = &Call{ID: ev.Call, Method: ev.Method, Began: ev.Mono, Metadata: ev.Metadata, Timeout: ev.Timeout, Partial: ev.Again}
			calls[id] = c
			order = append(order, c)
		}
		c.latest = max(c.latest, ev.Mono) // or a request would wait for a reply that comes after it
		m := Message{ev.Payload, c.latest, ev.Truncated}
		switch ev.Kind {
		case capture.Request:
			c.Requests = append(c.Requests, m)
			c.Redacted = c.Redacted || ev.Redacted
		case capture.Header:
			c.Header = ev.Metadata
		case capture.Reply:
			c.Replies = append(c.Replies, m)
		case capture.End:
			c.Ended, c.Finished, c.Code, c.Message, c.Details, c.Trailer = true, c.latest, ev.Code, ev.Message, ev.Details, ev.Metadata
		}
	}
	if len(order) == 0 {
		if backend != "" {
			return nil, fmt.Errorf("%w %q", ErrNoBackend, backend)
		}
		return nil, errors.New("the recording has no calls of clients")
	}
	slices.SortStableFunc(order, func(a, b *Call) int { return cmp.Compare(a.Began, b.Began) })
	return order, nil
}

// open reports whether a call was still under way when the recording ended, or was
// until its client left.
func (c *Call) open() bool { return !c.Ended || c.Code == codes.Canceled }
