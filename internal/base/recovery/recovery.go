// Package recovery limits the effect of a panic to the call in which it happened.
//
// A panic in any goroutine ends the process, and then no pod can be managed any more. So each
// goroutine that works on data from clients, runtimes or plugins recovers its panics with this
// package: a [Hook] gets the panic and its stack, and the caller gets an error.
//
// The package writes nothing. A library takes a Hook in its Config and calls Hook.Do; the
// program passes [Report], which counts the panics of the process and logs them.
package recovery

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A Hook is called once for each panic, in the goroutine that panicked. It gets what the code was
// doing, such as the method of a call, the value of the panic, and the stack. The nil Hook recovers
// panics without reporting them.
type Hook func(doing string, value any, stack []byte)

// A Panic is the error that replaces a panic. As a status it is Internal. Its text leaves out the
// value of the panic, which may be a part of a message and belongs in the log.
type Panic struct {
	Doing string // what the code was doing, such as the method of a call
}

func (p *Panic) Error() string {
	return fmt.Sprintf("criproxy: %s: criproxy panicked, which is a bug; please report it, with the panic and the stack in criproxy's log", p.Doing)
}

// GRPCStatus makes the error Internal for gRPC.
func (p *Panic) GRPCStatus() *status.Status { return status.New(codes.Internal, p.Error()) }

// To must be deferred. If the function panics, it recovers and stores a [*Panic] in err; otherwise
// it leaves err alone.
//
//	defer hook.To(&err, method)
func (h Hook) To(err *error, doing string) {
	if v := recover(); v != nil {
		*err = h.caught(v, doing)
	}
}

func (h Hook) caught(v any, doing string) *Panic {
	if h != nil {
		h(doing, v, debug.Stack())
	}
	return &Panic{doing}
}

// Do calls f and returns its error, or a [*Panic] if f panics.
func (h Hook) Do(doing string, f func() error) (err error) {
	defer h.To(&err, doing)
	return f()
}

// Run calls f, and returns a [*Panic] if f panics.
func (h Hook) Run(doing string, f func()) error {
	return h.Do(doing, func() error { f(); return nil })
}

// Keep runs f. Each time f panics, Keep runs it again a second later, until ctx ends. It is for code
// that must run as long as the process does.
func (h Hook) Keep(ctx context.Context, doing string, f func()) {
	for h.Run(doing, f) != nil {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
	}
}
