package recovery

import (
	"context"
	"sync/atomic"
)

// The panics of this process. Only the program uses them, and the functions below: a library has a
// Hook in its Config.
var (
	count  atomic.Uint64
	notify atomic.Pointer[Hook]
)

// Report is the Hook of a program: it counts the panic and passes it on to the hook that
// [Notify] has set.
func Report(doing string, value any, stack []byte) {
	count.Add(1)
	if h := notify.Load(); h != nil {
		(*h)(doing, value, stack)
	}
}

// Count returns how many panics were reported in this process.
func Count() uint64 { return count.Load() }

// Notify sets the hook that [Report] calls from now on.
func Notify(h Hook) { notify.Store(&h) }

// To is [Hook.To] with [Report].
func To(err *error, doing string) {
	if v := recover(); v != nil {
		*err = Hook(Report).caught(v, doing)
	}
}

// Do is [Hook.Do] with [Report].
func Do(doing string, f func() error) error { return Hook(Report).Do(doing, f) }

// Run is [Hook.Run] with [Report].
func Run(doing string, f func()) error { return Hook(Report).Run(doing, f) }

// Keep is [Hook.Keep] with [Report].
func Keep(ctx context.Context, doing string, f func()) { Hook(Report).Keep(ctx, doing, f) }
