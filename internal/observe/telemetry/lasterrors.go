package telemetry

import (
	"cmp"
	"path"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/transport"
)

// maxErrors is how many kinds of errors LastErrors remembers.
const maxErrors = 10

// LastErrors remembers the latest errors of clients' calls, one for each method, backend and
// code, except of calls that the client itself gave up. The zero value is empty. It is safe for
// concurrent use.
type LastErrors struct {
	mu  sync.Mutex
	all []admin.CallError // the latest first
}

// add remembers the error of a call. from is empty if no backend had an error.
func (l *LastErrors) add(method, from string, err error) {
	message := status.Convert(err).Message()
	e := admin.CallError{Time: time.Now(), Method: path.Base(method), Backend: cmp.Or(from, backend.NameIn(message)), Code: codeOf(err).String(), Message: message, Count: 1}
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

// codeOf returns the code that a client gets for err.
func codeOf(err error) codes.Code { return transport.StatusOf(err).Code() }
