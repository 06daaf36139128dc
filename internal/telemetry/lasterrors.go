package telemetry

import (
	"context"
	"path"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/state"
)

// maxErrors is how many kinds of errors are remembered.
const maxErrors = 10

// LastErrors remembers the latest errors of clients' calls, one for each method, backend and
// code. It ignores calls that the client itself gave up. The zero value is empty. It is safe for
// concurrent use.
type LastErrors struct {
	mu  sync.Mutex
	all []state.CallError // the latest first
}

// add remembers the end of a call to a backend; empty if no backend had an error.
func (l *LastErrors) add(method, backend string, err error) {
	code := codeOf(err)
	if code == codes.OK || code == codes.Canceled {
		return
	}
	message := status.Convert(err).Message()
	if about := aboutBackend.FindStringSubmatch(message); backend == "" && about != nil {
		backend = about[1]
	}
	e := state.CallError{Time: time.Now(), Method: path.Base(method), Backend: backend, Code: code.String(), Message: message, Count: 1}
	l.mu.Lock()
	defer l.mu.Unlock()
	same := func(o state.CallError) bool {
		return o.Method == e.Method && o.Backend == e.Backend && o.Code == e.Code
	}
	if i := slices.IndexFunc(l.all, same); i >= 0 {
		e.Count += l.all[i].Count
		l.all = slices.Delete(l.all, i, i+1)
	}
	l.all = slices.Insert(l.all, 0, e)
	l.all = l.all[:min(len(l.all), maxErrors)]
}

// aboutBackend finds the backend that an error of our own is about: it was not called.
var aboutBackend = regexp.MustCompile(`^criproxy: backend (\S+) `)

// List returns the errors, the latest first.
func (l *LastErrors) List() []state.CallError {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}

// Restore puts in the errors of another process, behind those that there are.
func (l *LastErrors) Restore(all []state.CallError) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, all...)
	l.all = l.all[:min(len(l.all), maxErrors)]
}

type errorKey struct{}

// Begin is for the director.
func (l *LastErrors) Begin(ctx context.Context, info director.LegInfo) (context.Context, director.Leg) {
	if info.Client {
		e := &errorLeg{Context: ctx, all: l, method: info.Method}
		return e, e
	}
	if e, ok := ctx.Value(errorKey{}).(*errorLeg); ok {
		return ctx, e.of(director.Backend{Name: info.Backend}.String())
	}
	return ctx, nil // our own call
}

// errorLeg remembers how a client's leg ends. It is the context of the call as well, so that the
// legs of backends find it.
type errorLeg struct {
	quietLeg
	context.Context
	all    *LastErrors
	method string
	one    failingLeg             // of the first backend
	taken  atomic.Bool            // it is
	failed atomic.Pointer[string] // the first backend with an error; nil if none had one
}

// Value finds the leg, and what the context of the call has.
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

// failingLeg notes at the leg of the client which backend had an error.
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
func codeOf(err error) codes.Code {
	if s, ok := status.FromError(err); ok {
		return s.Code()
	}
	return status.FromContextError(err).Code()
}
