package telemetry

import (
	"context"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/reflect/protoreflect"
	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	text "github.com/criproxy/criproxy/internal/base/dump"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// callLog logs calls. Level 2 logs calls that fail, level 3 also calls that change something, with
// their messages, level 4 also calls for a status, and level 5 also lists. It reads from the
// recorder, so that no call waits for the log.
type callLog struct {
	schema  *codec.Schema
	profile *director.Profile
	text    text.Text
}

// maxLogged is how many bytes of a message are logged.
const maxLogged = 64 << 10

// run logs the events that f reads, until the recorder is closed.
func (l *callLog) run(f *capture.Follower) {
	a := calls.NewAssembler(l.schema, nil)
	a.Copy, a.KeepBytes = true, maxLogged
	if !klog.V(3).Enabled() {
		a.KeepBytes = -1
	}
	var ev capture.Event
	for f.Next(context.Background(), &ev) == nil {
		if ev.Kind == capture.Missed {
			klog.InfoS("Calls are missing here: the log is written too slowly for them, or the flight recorder is too small (-flight-recorder)", "events", ev.Missed)
		}
		if c, what := a.Add(&ev); what == calls.Done && !c.Own {
			l.write(c)
		}
	}
}

// write logs a call as one record.
func (l *callLog) write(c *calls.Call) {
	full := klog.V(klog.Level(l.profile.LogLevel(c.Method))).Enabled()
	keys := []any{"method", c.Method, "client", c.From(), "pid", c.Peer.PID, "backend", strings.Join(c.Backends(), ","), "took", c.Took}
	if full {
		leg := c.Front()
		in, out := capture.MessageOf(l.schema, leg.Method, capture.Request), capture.MessageOf(l.schema, leg.Method, capture.Reply)
		keys = append(keys, "request", l.messages(in, leg.Requests), "reply", l.messages(out, leg.Replies))
	}
	if c.Code != codes.OK {
		keys = append(keys, "code", c.Code, "message", c.Message)
	}
	switch {
	case c.Failed():
		klog.InfoSDepth(0, "Call failed", keys...)
	case full:
		klog.InfoSDepth(0, "Call", keys...)
	}
}

func (l *callLog) messages(md protoreflect.MessageDescriptor, ms calls.Messages) string {
	var b []byte
	for i, m := range ms.Kept {
		if i > 0 {
			b = append(b, " | "...)
		}
		b = l.text.Append(b, md, m.Payload)
		if m.Truncated {
			b = append(b, " ..."...)
		}
	}
	return string(b)
}
