package main

import (
	"context"
	"path"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// generations count calls, so that what they use can be taken away when the last
// one that may use it has ended: a call belongs to the generation in which it
// began, and the table that it works by is that of its generation, or a newer one.
type generations struct {
	mu       sync.Mutex
	now      *generation
	calls    map[*callUnderWay]struct{}
	stopping error // of streams that never end by themselves, from when the process stops
}

type generation struct {
	calls   int           // under way, and one for being the current generation
	waiting bool          // for the generation before to end
	after   *generation   // nil for the current one
	ended   chan struct{} // closed when all calls of this generation and those before have ended

	// events ends, with a cause, when endless streams are to end.
	events    context.Context
	endEvents context.CancelCauseFunc
}

func newGenerations() *generations {
	return &generations{now: newGeneration(false), calls: map[*callUnderWay]struct{}{}}
}

func newGeneration(waiting bool) *generation {
	g := &generation{calls: 1, waiting: waiting, ended: make(chan struct{})}
	g.events, g.endEvents = context.WithCancelCause(context.Background())
	return g
}

// next begins a generation. The channel is closed when all calls that began earlier
// have ended. Streams that never end by themselves are ended, with Unavailable and
// why.
func (gs *generations) next(why string) <-chan struct{} {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	return gs.nextLocked(status.Error(codes.Unavailable, why))
}

// stop is next, after which no stream begins that never ends by itself.
func (gs *generations) stop(why string) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	gs.stopping = status.Error(codes.Unavailable, why)
	gs.nextLocked(gs.stopping)
}

func (gs *generations) nextLocked(why error) <-chan struct{} {
	old := gs.now
	gs.now = newGeneration(true)
	old.after = gs.now
	old.endEvents(why)
	old.leave()
	return old.ended
}

// leave takes a call away. The lock is held.
func (g *generation) leave() {
	g.calls--
	for ; g != nil && g.calls == 0 && !g.waiting; g = g.after {
		close(g.ended)
		g.after.waiting = false
	}
}

// begin counts a call, until the function that it returns is called.
func (gs *generations) begin(call *callUnderWay) (*generation, func()) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	g := gs.now
	g.calls++
	gs.calls[call] = struct{}{}
	return g, func() {
		gs.mu.Lock()
		defer gs.mu.Unlock()
		delete(gs.calls, call)
		g.leave()
	}
}

// endless are methods whose streams last as long as client and server.
func endless(method string) bool {
	return path.Base(method) == "GetContainerEvents" || method == healthgrpc.Health_Watch_FullMethodName
}

// intercept counts each call.
func (gs *generations) intercept(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	g, end := gs.begin(&callUnderWay{info.FullMethod, peerOf(ss.Context()), time.Now()})
	defer end()
	if !endless(info.FullMethod) {
		return handler(srv, ss)
	}
	gs.mu.Lock()
	stopping := gs.stopping
	gs.mu.Unlock()
	if stopping != nil {
		return stopping
	}
	ctx, cancel := context.WithCancelCause(ss.Context())
	defer cancel(nil)
	defer context.AfterFunc(g.events, func() { cancel(context.Cause(g.events)) })()
	err := handler(srv, &streamWithContext{ss, ctx})
	if cause := context.Cause(g.events); cause != nil && ss.Context().Err() == nil && err != nil {
		return cause
	}
	return err
}

// streamWithContext is a stream with another context.
type streamWithContext struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *streamWithContext) Context() context.Context { return s.ctx }
