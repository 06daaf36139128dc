package telemetry

import (
	"cmp"
	"context"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/transport"
)

// maxErrors is how many kinds of errors LastErrors remembers.
const maxErrors = 10

// LastErrors remembers the latest errors of clients' calls, one for each method, backend and
// code. It ignores calls that the client itself gave up. The zero value is empty. It is safe for
// concurrent use.
type LastErrors struct {
	mu  sync.Mutex
	all []admin.CallError // the latest first
}

// add remembers the error of a call. backend is empty if no backend had an error.
func (l *LastErrors) add(method, backend string, err error) {
	code := codeOf(err)
	if code == codes.OK || code == codes.Canceled {
		return
	}
	message := status.Convert(err).Message()
	e := admin.CallError{Time: time.Now(), Method: path.Base(method), Backend: cmp.Or(backend, calls.BackendIn(message)), Code: code.String(), Message: message, Count: 1}
	l.mu.Lock()
	defer l.mu.Unlock()
	same := func(o admin.CallError) bool {
		return o.Method == e.Method && o.Backend == e.Backend && o.Code == e.Code
	}
	if i := slices.IndexFunc(l.all, same); i >= 0 {
		e.Count += l.all[i].Count
		l.all = slices.Delete(l.all, i, i+1)
	}
	l.all = slices.Insert(l.all, 0, e)
	l.all = l.all[:min(len(l.all), maxErrors)]
}

// List returns the errors, the latest first.
func (l *LastErrors) List() []admin.CallError {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}

// Restore adds the errors of another process after those that the list has.
func (l *LastErrors) Restore(all []admin.CallError) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, all...)
	l.all = l.all[:min(len(l.all), maxErrors)]
}

type errorKey struct{}

// Begin implements [director.Tracer].
func (l *LastErrors) Begin(ctx context.Context, info director.LegInfo) (context.Context, director.Leg) {
	if info.Client {
		e := &errorLeg{Context: ctx, all: l, method: info.Method}
		return e, e
	}
	if e, ok := ctx.Value(errorKey{}).(*errorLeg); ok {
		return ctx, e.of(director.Backend{Name: info.Backend}.String())
	}
	return ctx, nil // a call that criproxy makes itself
}

// errorLeg remembers how a client's leg ends. It is also the context of the call, so that the
// legs of backends find it.
type errorLeg struct {
	quietLeg
	context.Context
	all    *LastErrors
	method string
	one    failingLeg             // of the first backend; saves an allocation
	taken  atomic.Bool            // one is in use
	failed atomic.Pointer[string] // the first backend with an error; nil if none had one
}

// Value returns the leg itself for errorKey, and otherwise the value in the context of the call.
func (e *errorLeg) Value(key any) any {
	if key == (errorKey{}) {
		return e
	}
	return e.Context.Value(key)
}

// of returns the leg of a backend.
func (e *errorLeg) of(backend string) *failingLeg {
	f := &e.one
	if e.taken.Swap(true) {
		f = &failingLeg{}
	}
	f.call, f.backend = e, backend
	return f
}

// End remembers the error of the call.
func (e *errorLeg) End(err error, _ metadata.MD) {
	backend := ""
	if of := e.failed.Load(); of != nil {
		backend = *of
	}
	e.all.add(e.method, backend, err)
}

// failingLeg is the leg of a backend. It notifies the client's leg if the backend had an error.
type failingLeg struct {
	quietLeg
	call    *errorLeg
	backend string
}

// End notes the backend, if it is the first with an error.
func (f *failingLeg) End(err error, _ metadata.MD) {
	if code := codeOf(err); code != codes.OK && code != codes.Canceled {
		f.call.failed.CompareAndSwap(nil, &f.backend)
	}
}

// codeOf returns the code that a client gets for err.
func codeOf(err error) codes.Code { return transport.StatusOf(err).Code() }
