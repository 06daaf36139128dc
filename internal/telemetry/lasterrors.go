package telemetry

import (
	"context"
	"path"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/state"
)

// maxErrors is how many kinds of errors are remembered.
const maxErrors = 10

// LastErrors remembers the latest errors of clients' calls, one for each method and code. It
// ignores calls that the client itself gave up. The zero value is empty. It is safe for
// concurrent use.
type LastErrors struct {
	mu  sync.Mutex
	all []state.CallError // the latest first
}

// add remembers the end of a call.
func (l *LastErrors) add(method string, err error) {
	code := codeOf(err)
	if code == codes.OK || code == codes.Canceled {
		return
	}
	e := state.CallError{Time: time.Now(), Method: path.Base(method), Code: code.String(), Message: status.Convert(err).Message(), Count: 1}
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.IndexFunc(l.all, func(o state.CallError) bool { return o.Method == e.Method && o.Code == e.Code }); i >= 0 {
		e.Count += l.all[i].Count
		l.all = slices.Delete(l.all, i, i+1)
	}
	l.all = slices.Insert(l.all, 0, e)
	l.all = l.all[:min(len(l.all), maxErrors)]
}

// List returns the errors, the latest first.
func (l *LastErrors) List() []state.CallError {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}

// Begin is for the director.
func (l *LastErrors) Begin(ctx context.Context, info director.LegInfo) (context.Context, director.Leg) {
	if !info.Client {
		return ctx, nil
	}
	return ctx, &errorLeg{all: l, method: info.Method}
}

// errorLeg remembers how a client's leg ends.
type errorLeg struct {
	all    *LastErrors
	method string
}

func (*errorLeg) Request(*codec.Frame)           {}
func (*errorLeg) Header(metadata.MD)             {}
func (*errorLeg) Reply(*codec.Frame)             {}
func (e *errorLeg) End(err error, _ metadata.MD) { e.all.add(e.method, err) }

// codeOf returns the code that a client gets for err.
func codeOf(err error) codes.Code {
	if s, ok := status.FromError(err); ok {
		return s.Code()
	}
	return status.FromContextError(err).Code()
}
