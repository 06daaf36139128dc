// Package recovery keeps a panic to the call that it happened in.
//
// A panic in any goroutine ends the process, and with it every pod's way to its runtime.
// So each goroutine of ours that works on what others sent recovers its panics with this
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

// A Hook is called once for each panic, in the goroutine in which it happened: with what
// was being done, such as a method, what panic was called with, and the stack. The nil Hook
// recovers panics and reports none.
type Hook func(doing string, value any, stack []byte)

// A Panic is the error that a panic has become. As a status it is Internal. Its text leaves
// out the value of the panic, which may be a part of a message: that is for the log.
type Panic struct {
	Doing string // what was being done, such as a method
	Value any    // what panic was called with
	Stack []byte
}

func (p *Panic) Error() string {
	return fmt.Sprintf("criproxy: %s: a mistake in criproxy ended this; its log has a panic with its stack, please report it", p.Doing)
}

// GRPCStatus makes the error Internal for gRPC.
func (p *Panic) GRPCStatus() *status.Status { return status.New(codes.Internal, p.Error()) }

// To is to be deferred. It stores a panic as an error at err, and otherwise leaves err alone.
//
//	defer hook.To(&err, method)
func (h Hook) To(err *error, doing string) {
	if v := recover(); v != nil {
		*err = h.caught(v, doing)
	}
}

func (h Hook) caught(v any, doing string) *Panic {
	p := &Panic{doing, v, debug.Stack()}
	if h != nil {
		h(p.Doing, p.Value, p.Stack)
	}
	return p
}

// Do calls f and returns its error, or that of its panic.
func (h Hook) Do(doing string, f func() error) (err error) {
	defer h.To(&err, doing)
	return f()
}

// Run calls f and returns its panic, nil if there was none.
func (h Hook) Run(doing string, f func()) error {
	return h.Do(doing, func() error { f(); return nil })
}

// Keep runs f, and runs it again a second later, for as long as it panics and ctx goes on.
// It is for what must run as long as the process does.
func (h Hook) Keep(ctx context.Context, doing string, f func()) {
	for h.Run(doing, f) != nil {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
	}
}
