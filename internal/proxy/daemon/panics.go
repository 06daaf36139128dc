package daemon

import (
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/base/recovery"
)

// logPanic logs a panic that was recovered. Its stack has addresses, but no contents of
// messages.
func logPanic(doing string, value any, stack []byte) {
	klog.ErrorS(nil, "A mistake in criproxy, please report it: a panic ended one call or one task; the process goes on",
		"doing", doing, "panic", value, "panics", recovery.Count(), "stack", string(stack))
	if panickedIn(string(stack), "/internal/base/transport.") {
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

// failures are the times of the latest failures.
type failures struct {
	mu     sync.Mutex
	last   [3]time.Time // the oldest first
	advice time.Time    // when the log had the cure
}

// fails notes a failure. At three within a minute the log gets the cure, at most once in ten minutes.
func (f *failures) fails(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = [3]time.Time{f.last[1], f.last[2], now}
	if f.last[0].IsZero() || now.Sub(f.last[0]) > time.Minute || !f.advice.IsZero() && now.Sub(f.advice) < 10*time.Minute {
		return
	}
	f.advice = now
	klog.ErrorS(nil, "criproxy's own data path failed three times within a minute; if calls fail, set dataPath to grpc in the configuration, then hand over with kill -USR2, which fails no call, and report this")
}
