package daemon

import (
	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/base/recovery"
)

// logPanic logs a panic that was recovered. Its stack has addresses, but no contents of
// messages.
func logPanic(doing string, value any, stack []byte) {
	klog.ErrorS(nil, "A mistake in criproxy, please report it: a panic ended one call or one task; the process goes on",
		"doing", doing, "panic", value, "panics", recovery.Count(), "stack", string(stack))
}
