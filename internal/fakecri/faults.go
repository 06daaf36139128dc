package fakecri

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

// A Fault decides whether a call fails: it may return an error, usually a gRPC status, and it may
// block until ctx ends at the latest. The method is the full name,
// "/runtime.v1.RuntimeService/Version". Several goroutines may call a Fault at once. It must not
// change the request.
type Fault func(ctx context.Context, method string, request any) error

// strike makes a call fail if a fault says so. at may hold nil, or a nil fault.
func strike(ctx context.Context, at *atomic.Pointer[Fault], method string, request any) error {
	if f := at.Load(); f != nil && *f != nil {
		return (*f)(ctx, method, request)
	}
	return nil
}

// Fault makes the runtime call f before each call. If f returns an error, the runtime answers with
// it, and the call has no effect. Nil removes the fault.
func (rt *Runtime) Fault(f Fault) { rt.before.Store(&f) }

// FaultAfter makes the runtime call f after each call that succeeded. If f returns an error,
// the call took effect but the client gets the error: the reply is lost. On
// streams the runtime calls f after each message that it has sent, and an error ends the stream.
// Nil removes the fault.
func (rt *Runtime) FaultAfter(f Fault) { rt.after.Store(&f) }

// A Call is a call that the runtime received. It must not be changed.
type Call struct {
	Method   string // "/runtime.v1.RuntimeService/Version"
	Request  proto.Message
	Metadata metadata.MD
}

// mostCalls is how many calls Calls returns at most.
const mostCalls = 10000

type callLog struct {
	mu    sync.Mutex
	calls []Call // the latest calls, at most twice mostCalls
}

func (l *callLog) add(method string, req any, md metadata.MD) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.calls) >= 2*mostCalls {
		l.calls = append(l.calls[:0], l.calls[len(l.calls)-mostCalls:]...)
	}
	message, _ := req.(proto.Message)
	l.calls = append(l.calls, Call{Method: method, Request: message, Metadata: md})
}

// Calls returns the latest calls in order of arrival: all of them, or those of the given methods
// ("Version", or with package and service).
func (rt *Runtime) Calls(methods ...string) []Call {
	l := &rt.calls
	l.mu.Lock()
	defer l.mu.Unlock()
	var calls []Call
	for _, c := range l.calls[max(0, len(l.calls)-mostCalls):] {
		bare := c.Method[strings.LastIndexByte(c.Method, '/')+1:]
		if len(methods) == 0 || slices.Contains(methods, bare) || slices.Contains(methods, c.Method) {
			calls = append(calls, c)
		}
	}
	return calls
}
