// Package recovery keeps a panic to the call that it happened in.
//
// A panic in any goroutine ends the process, and with it every pod's way to its
// runtime. So each goroutine of ours that works on what others sent ends its panics
// here: they are told once, with their stack, and become an error.
package recovery

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A Panic is the error that a panic has become. As a status it is Internal. It does
// not say what the panic said, which may have to do with what was in a message: that
// is for the log.
type Panic struct {
	What  string // what was being done, such as a method
	Value any    // what panic was called with
	Stack []byte
}

func (p *Panic) Error() string {
	return fmt.Sprintf("criproxy: %s: a mistake in criproxy ended this; its log has a panic with its stack, please report it", p.What)
}

// GRPCStatus is for gRPC.
func (p *Panic) GRPCStatus() *status.Status { return status.New(codes.Internal, p.Error()) }

var (
	count atomic.Uint64
	told  atomic.Pointer[func(*Panic)]
)

// Count returns how many panics there have been in this process.
func Count() uint64 { return count.Load() }

// Notify has f told of each panic from now on, in the goroutine in which it happened.
// Until it is called they are printed to stderr.
func Notify(f func(*Panic)) { told.Store(&f) }

// To is to be deferred. It makes a panic the error at err, which otherwise stays what
// it is.
//
//	defer contain.To(&err, method)
func To(err *error, what string) {
	if v := recover(); v != nil {
		*err = caught(v, what)
	}
}

// Do calls f and returns its error, or that of its panic.
func Do(what string, f func() error) (err error) {
	defer To(&err, what)
	return f()
}

// Run calls f and returns its panic, nil if there was none.
func Run(what string, f func()) error {
	return Do(what, func() error { f(); return nil })
}

func caught(v any, what string) *Panic {
	p := &Panic{What: what, Value: v, Stack: debug.Stack()}
	count.Add(1)
	if f := told.Load(); f != nil {
		(*f)(p)
	} else {
		fmt.Fprintf(os.Stderr, "panic in %s: %v\n%s", what, v, p.Stack)
	}
	return p
}

// Keep runs f, and runs it again, a second later, for as long as it panics and ctx goes
// on. It is for what has to be there as long as the process is.
func Keep(ctx context.Context, what string, f func()) {
	for Run(what, f) != nil {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
	}
}
