package capture

import (
	"bytes"
	"slices"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/dump"
)

// rewrites finds the changes between the legs of a call, message by message. It keeps the messages
// of calls under way for as long as it may need them.
type rewrites struct {
	schema *codec.Schema
	calls  map[uint64]*rewriteState
	free   *rewriteState // of a call that has ended, for the next one
}

type rewriteState struct {
	request []byte         // the client's latest, nil if there is none
	replies []rewriteReply // of backends, since the client's latest reply
}

type rewriteReply struct {
	backend string
	payload []byte
}

const (
	maxRewriteCalls = 1000     // calls under way that are compared
	maxRewriteBytes = 64 << 10 // length of the longest message that is compared
	maxRewrites     = 20       // lines for one message
)

// add takes in an event. For a request on a backend leg, and for a reply on the client's leg, it
// returns the changes to the message.
func (r *rewrites) add(ev *Event, h *FileHeader) []string {
	if r.calls == nil {
		r.calls = map[uint64]*rewriteState{}
	}
	s := r.calls[ev.Call]
	if s == nil {
		if ev.Leg != 0 || ev.Kind == End || len(r.calls) >= maxRewriteCalls {
			return nil
		}
		if s, r.free = r.free, nil; s == nil {
			s = &rewriteState{}
		}
		r.calls[ev.Call] = s
	}
	client := ev.Leg == 0
	switch {
	case ev.Kind == End && client:
		delete(r.calls, ev.Call)
		clear(s.replies)
		*s = rewriteState{replies: s.replies[:0]}
		r.free = s
	case ev.Truncated || len(ev.Payload) > maxRewriteBytes:
	case ev.Kind == Request && client:
		s.request = append([]byte{}, ev.Payload...) // a reference would keep a whole chunk of the recorder
	case ev.Kind == Request && s.request != nil:
		return r.diff(ev, s.request, ev.Payload)
	case ev.Kind == Reply && !client:
		s.replies = append(s.replies, rewriteReply{ev.Backend, bytes.Clone(ev.Payload)})
		if len(s.replies) > 16 {
			s.replies = s.replies[1:]
		}
	case ev.Kind == Reply:
		slices.SortStableFunc(s.replies, func(a, b rewriteReply) int { return h.Order(a.backend) - h.Order(b.backend) })
		var whole []byte
		for _, reply := range s.replies {
			whole = append(whole, reply.payload...)
		}
		seen := len(s.replies) > 0
		clear(s.replies)
		s.replies = s.replies[:0]
		if seen {
			return r.diff(ev, whole, ev.Payload)
		}
	}
	return nil
}

func (r *rewrites) diff(ev *Event, before, after []byte) []string {
	if bytes.Equal(before, after) {
		return nil
	}
	var lines []string
	for _, c := range (dump.Text{MaxValue: 200}).Diff(MessageOf(r.schema, ev.Method, ev.Kind), before, after) {
		if len(lines) == maxRewrites {
			return append(lines, "rewrite ...")
		}
		lines = append(lines, "rewrite "+c.String())
	}
	return lines
}
