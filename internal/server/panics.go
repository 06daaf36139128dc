package server

import (
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/base/recovery"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// logPanic logs a panic that was recovered. Its stack has addresses, but no contents of
// messages. One in the own data path counts as a failure of it.
func logPanic(doing string, value any, stack []byte) {
	klog.ErrorS(nil, "A mistake in criproxy, please report it: a panic ended one call or one task; the process goes on",
		"doing", doing, "panic", value, "panics", recovery.Count(), "stack", string(stack))
	if panickedIn(string(stack), "/internal/transport.") {
		ownPath.fails(time.Now())
	}
}

// logBlame logs that a peer ended a connection because of what this process sent.
func logBlame(why string) {
	klog.ErrorS(nil, "A peer ended its connection, and says that criproxy broke the rules of HTTP/2; one of the two has a mistake", "says", why)
	ownPath.fails(time.Now())
}

// panickedIn reports whether the function that panicked is in a package, by the stack of a deferred
// function that recovers.
func panickedIn(stack, pkg string) bool {
	_, below, _ := strings.Cut(stack, "\npanic(")
	for line := range strings.Lines(below) {
		if line[0] != '\t' && !strings.HasPrefix(line, "runtime.") && !strings.HasPrefix(line, "{") && strings.Contains(line, "/") {
			return strings.Contains(line, pkg)
		}
	}
	return false
}

// ownPath counts the failures of the process's own data path.
var ownPath failures

// latest has the times of the latest three events of a kind, the oldest first.
type latest [3]time.Time

// add notes an event, and reports whether it is the third within a minute.
func (l *latest) add(now time.Time) bool {
	*l = latest{l[1], l[2], now}
	return !l[0].IsZero() && now.Sub(l[0]) <= time.Minute
}

// failures are the latest failures. They are safe for concurrent use, and the zero value has none.
type failures struct {
	mu     sync.Mutex
	last   latest
	advice time.Time // when the log had the cure
}

// fails notes a failure. At three within a minute the log gets the cure, at most once in ten minutes.
func (f *failures) fails(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.last.add(now) || now.Sub(f.advice) < 10*time.Minute {
		return
	}
	f.advice = now
	klog.ErrorS(nil, "criproxy's own data path failed three times within a minute; if calls fail, set dataPath to grpc in the configuration, then hand over with kill -USR2, which fails no call, and report this")
}

// crashes counts the processes that served before this one and never recorded that they stopped: they crashed or were killed.
// New shows it the history, and Run that this process begins; nothing else uses it.
type crashes struct {
	served bool   // the latest process has begun to serve, and has not recorded that it stopped
	last   latest // when others began after crashes
}

// follow takes in a change that an earlier process has recorded, in their order.
func (c *crashes) follow(change *capture.Change) {
	switch change.What {
	case capture.Serving:
		c.begin(change.Time)
	case capture.HandedOver: // the process before it records nothing any more
		c.served = true
	case capture.Stopped:
		c.served = false
	}
}

// begin notes that a process begins without a handover, and reports whether it does so after the third crash in a minute.
func (c *crashes) begin(now time.Time) bool {
	if !c.served {
		c.served = true
		return false
	}
	return c.last.add(now)
}

// beginAfterCrashes notes that this process begins without a handover. After the third crash in a minute the log gets the
// cure; nothing switches by itself.
func (p *Proxy) beginAfterCrashes(now time.Time) {
	if p.crashes.begin(now) && dataPaths[p.Config().DataPath].cure {
		klog.ErrorS(nil, "This program ended unasked three times within a minute; if the log of the earlier processes shows a panic in internal/transport, set dataPath to grpc in the configuration, restart, and report this")
	}
}
