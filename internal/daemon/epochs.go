package daemon

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/internal/listen"
)

// epochs count calls, so that what they use can be taken away when the last
// one that may use it has ended: a call belongs to the generation in which it
// began, and the table that it works by is that of its generation, or a newer one.
// Streams that never end by themselves are of no generation: they follow the table,
// and end when the process stops.
type epochs struct {
	endless func(method string) bool

	mu    sync.Mutex // guards what follows
	now   *epoch
	calls map[*callUnderWay]struct{}

	stopping context.Context // ends, with a cause, when endless streams are to end
	stop     context.CancelCauseFunc
}

type epoch struct {
	calls   int           // under way, and one for being the current generation
	waiting bool          // for the generation before to end
	after   *epoch        // nil for the current one
	ended   chan struct{} // closed when all calls of this generation and those before have ended
}

func newEpochs() *epochs {
	gs := &epochs{now: newEpoch(false), endless: func(string) bool { return false }, calls: map[*callUnderWay]struct{}{}}
	gs.stopping, gs.stop = context.WithCancelCause(context.Background())
	return gs
}

func newEpoch(waiting bool) *epoch {
	return &epoch{calls: 1, waiting: waiting, ended: make(chan struct{})}
}

// next begins a generation. The channel is closed when all calls that began earlier
// have ended.
func (gs *epochs) next() <-chan struct{} {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	old := gs.now
	gs.now = newEpoch(true)
	old.after = gs.now
	old.leave()
	return old.ended
}

// endStreams ends streams that never end by themselves, with Unavailable and why, and
// lets none begin any more.
func (gs *epochs) endStreams(why string) { gs.stop(status.Error(codes.Unavailable, why)) }

// leave takes a call away. The lock is held.
func (g *epoch) leave() {
	g.calls--
	for ; g != nil && g.calls == 0 && !g.waiting; g = g.after {
		close(g.ended)
		g.after.waiting = false
	}
}

// begin counts a call, until the function that it returns is called.
func (gs *epochs) begin() func() {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	g := gs.now
	g.calls++
	return func() {
		gs.mu.Lock()
		defer gs.mu.Unlock()
		g.leave()
	}
}

// note keeps a call in the list of those under way, until the function that it returns is
// called.
func (gs *epochs) note(call *callUnderWay) func() {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	gs.calls[call] = struct{}{}
	return func() {
		gs.mu.Lock()
		defer gs.mu.Unlock()
		delete(gs.calls, call)
	}
}

// intercept counts each call.
func (gs *epochs) intercept(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	defer gs.note(&callUnderWay{info.FullMethod, listen.PeerOf(ss.Context()), time.Now()})()
	if !gs.endless(info.FullMethod) && info.FullMethod != healthgrpc.Health_Watch_FullMethodName {
		defer gs.begin()()
		return handler(srv, ss)
	}
	ctx, cancel := context.WithCancelCause(ss.Context())
	defer cancel(nil)
	defer context.AfterFunc(gs.stopping, func() { cancel(context.Cause(gs.stopping)) })()
	err := handler(srv, &streamWithContext{ss, ctx})
	if cause := context.Cause(gs.stopping); cause != nil && ss.Context().Err() == nil && err != nil {
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
